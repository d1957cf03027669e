"""The calls of the API. Each takes effect at once, as one step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse, PlainTextResponse

from tests.fakes.coolify import checks, shapes
from tests.fakes.coolify.containers import ContainerState
from tests.fakes.coolify.http import FrameworkError, Refused, invalid
from tests.fakes.coolify.records import Deployment, Variable
from tests.fakes.coolify.rules import beta

if TYPE_CHECKING:
    from starlette.responses import Response

    from tests.fakes.coolify.http import Call
    from tests.fakes.coolify.model import Model, Queued
    from tests.fakes.coolify.records import Application

_LONGEST_TEXT = 255
_MOST_LOG_LINES = 10_000
_NOT_KEPT = frozenset(
    {
        "autogenerate_domain",
        "destination_uuid",
        "environment_name",
        "environment_uuid",
        "force_domain_override",
        "instant_deploy",
        "project_uuid",
        "server_uuid",
    }
)


def version(model: Model, _: Call) -> Response:
    return PlainTextResponse(model.rules.version)


def health(_: Model, __: Call) -> Response:
    return PlainTextResponse("OK")


# Servers and projects


def list_servers(model: Model, _: Call) -> Response:
    return JSONResponse([shapes.listed_server(one) for one in model.servers.values()])


def get_server(model: Model, call: Call) -> Response:
    server = model.servers.get(call.parameters["uuid"])
    if server is None:
        raise Refused(404, "Server not found.")
    return JSONResponse(shapes.server(server))


def get_cleanup(model: Model, call: Call) -> Response:
    server = model.servers.get(call.parameters["uuid"])
    if server is None:
        raise Refused(404, "Server not found.")
    return JSONResponse(shapes.cleanup(server))


def list_projects(model: Model, _: Call) -> Response:
    return JSONResponse([shapes.project(model)])


def get_project(model: Model, call: Call) -> Response:
    _project(model, call.parameters["uuid"])
    return JSONResponse({**shapes.project(model), "environments": shapes.environments(model)})


def list_environments(model: Model, call: Call) -> Response:
    _project(model, call.parameters["uuid"])
    return JSONResponse(shapes.environments(model))


def get_environment(model: Model, call: Call) -> Response:
    _project(model, call.parameters["uuid"])
    (only,) = shapes.environments(model)
    if call.parameters["environment"] not in {only["name"], only["uuid"]}:
        raise Refused(404, "Environment not found.")
    applications = [shapes.application(model, one) for one in model.applications.values()]
    return JSONResponse({**only, "applications": applications})


def _project(model: Model, uuid: str) -> None:
    if uuid != model.project_uuid:
        raise Refused(404, "Project not found.")


# Applications


def create_application(model: Model, call: Call) -> Response:
    body = call.body
    if not body:
        raise Refused(400, "Invalid request.", error="Empty JSON.")
    if errors := checks.creation(body, model.rules.release):
        raise invalid(errors)
    server = _place(model, body)
    _check_text(body)
    kept = {name: value for name, value in body.items() if name not in _NOT_KEPT}
    _check_domains(model, body, None)
    application = model.create_application(server, dict(body), kept)
    if not body.get("domains") and checks.boolean(body.get("autogenerate_domain", True)):
        ip = model.servers[server].ip
        application.fields["domains"] = f"http://{application.uuid}.{ip}.sslip.io"
    if checks.boolean(body.get("instant_deploy", False)):
        model.queue_deployment(application, instant=True)
    domains = application.fields.get("domains")
    return JSONResponse({"uuid": application.uuid, "domains": domains}, 201)


def _place(model: Model, body: dict[str, Any]) -> str:
    """The server of a new application."""
    if not body.get("environment_name") and not body.get("environment_uuid"):
        raise Refused(422, "You need to provide at least one of environment_name or uuid.")
    _project(model, body["project_uuid"])
    if (
        body.get("environment_name") != model.environment_name
        and body.get("environment_uuid") != model.environment_uuid
    ):
        raise Refused(404, "Environment not found.")
    server = str(body["server_uuid"])
    if server not in model.servers:
        raise Refused(404, "Server not found.")
    # Each server here has one destination. Coolify takes that, whichever is asked for.
    return server


def _check_text(body: dict[str, Any]) -> None:
    """Nothing validates a text's length before the database refuses it."""
    if any(len(body.get(name) or "") > _LONGEST_TEXT for name in ("name", "description")):
        raise FrameworkError(500, "SQLSTATE[22001]: value too long for type character varying(255)")


def _check_domains(model: Model, body: dict[str, Any], own: Application | None) -> None:
    domains = body.get("domains")
    taken = [
        one
        for one in model.applications.values()
        if one is not own and domains and one.fields.get("domains") == domains
    ]
    if taken and not checks.boolean(body.get("force_domain_override", False)):
        conflicts = [{"domain": domains, "resource_uuid": one.uuid} for one in taken]
        raise Refused(409, "Domain conflicts detected.", conflicts=conflicts)


def list_applications(model: Model, call: Call) -> Response:
    tag = call.query.get("tag")
    return JSONResponse(
        [
            shapes.application(model, one)
            for one in model.applications.values()
            if tag is None or tag in (one.fields.get("tags") or [])
        ]
    )


def get_application(model: Model, call: Call) -> Response:
    return JSONResponse(shapes.application_in_full(model, _application(model, call)))


def update_application(model: Model, call: Call) -> Response:
    if not call.body:
        raise Refused(400, "Invalid request.", error="Empty JSON.")
    application = _application(model, call)
    if errors := checks.update(call.body, model.rules.release):
        raise invalid(errors)
    _check_domains(model, call.body, application)
    _check_text(call.body)
    application.fields |= {
        name: value for name, value in call.body.items() if name not in _NOT_KEPT
    }
    if call.flag("instant_deploy"):
        model.queue_deployment(application)
    return JSONResponse({"uuid": application.uuid})


def delete_application(model: Model, call: Call) -> Response:
    cleanup = call.flag("docker_cleanup", default=True)
    if model.rules.release <= beta(436) and call.given("docker_cleanup") == "false":
        cleanup = True  # a text that isn't empty
    model.queue_deletion(_application(model, call), cleanup=cleanup)
    return JSONResponse({"message": "Application deletion request queued."})


def _application(model: Model, call: Call) -> Application:
    application = model.applications.get(call.parameters["uuid"])
    if application is None:
        raise Refused(404, "Application not found.")
    return application


# Starts and stops


def start(model: Model, call: Call) -> Response:
    return _start(model, call, "Deployment request queued.")


def restart(model: Model, call: Call) -> Response:
    return _start(model, call, "Restart request queued.")


def _start(model: Model, call: Call, message: str) -> Response:
    """Answers 200 in any case: with a uuid of nothing when the queue is full."""
    queued = _queue(model, _application(model, call), call)
    if queued.outcome == "skipped":
        return JSONResponse({"message": queued.message})
    return JSONResponse({"message": message, "deployment_uuid": _uuid(model, queued)})


def deploy(model: Model, call: Call) -> Response:
    uuids, tags = call.given("uuid"), call.given("tag")
    if uuids and tags:
        raise Refused(400, "You can only use uuid or tag, not both.")
    if not uuids and not tags:
        raise Refused(400, "You must provide uuid or tag.")
    if uuids:
        found = [model.applications.get(uuid) for uuid in str(uuids).split(",")]
    else:
        wanted = set(str(tags).split(","))
        found = [
            one for one in model.applications.values() if wanted & set(one.fields.get("tags") or [])
        ]
    shown = [_deployed(model, one, call) for one in found if one is not None]
    if not shown:
        raise Refused(404, "No resources found.")
    return JSONResponse({"deployments": shown})


def _deployed(model: Model, application: Application, call: Call) -> dict[str, str]:
    queued = _queue(model, application, call)
    if queued.outcome == "queue_full":
        raise Refused(429, queued.message, headers={"Retry-After": "60"})
    message = queued.message
    if queued.deployment is not None:
        message = f"Application {application.name} deployment queued."
    return {
        "message": message,
        "resource_uuid": application.uuid,
        "deployment_uuid": _uuid(model, queued),
    }


def _queue(model: Model, application: Application, call: Call) -> Queued:
    return model.queue_deployment(
        application, force=call.flag("force"), instant=call.flag("instant_deploy")
    )


def _uuid(model: Model, queued: Queued) -> str:
    """The deployment's, or that of none."""
    return queued.deployment.uuid if queued.deployment else model.new_uuid()


def stop(model: Model, call: Call) -> Response:
    cleanup = call.flag("docker_cleanup", default=True)
    model.queue_stop(_application(model, call), cleanup=cleanup)
    return JSONResponse({"message": "Application stopping request queued."})


def logs(model: Model, call: Call) -> Response:
    application = _application(model, call)
    server = model.servers[application.server_uuid]
    if not server.reachable:
        raise FrameworkError(500, "Server is not functional.")
    lines = call.query.get("lines", "")
    count = min(int(lines), _MOST_LOG_LINES) if lines.isdecimal() and int(lines) else 100
    # Docker lists the newest first, and Coolify looks at the first.
    newest = application.containers[-1:]
    found = newest and newest[0].state is ContainerState.RUNNING and not server.swarm
    if not found:
        raise not_running()
    stamped = call.flag("show_timestamps")
    shown = [
        f"{shapes.moment(time)} {line}" if stamped else line
        for time, line in newest[0].output[-count:]
    ]
    return JSONResponse({"logs": "\n".join(shown)})


def not_running() -> Refused:
    """What is said of logs if nothing runs, or if a command on the server failed."""
    return Refused(400, "Application is not running.")


# Variables


def list_variables(model: Model, call: Call) -> Response:
    return _shown(model, _application(model, call).variables)


def set_variables(model: Model, call: Call) -> Response:
    """Not transactional: what stands before a refused item stays."""
    application = _application(model, call)
    items = call.body.get("data")
    if not items or not isinstance(items, list):
        raise Refused(400, "Bulk data is required.")
    taken = checks.known(checks.VARIABLE, model.rules.release)
    done = []
    for item in items:
        if errors := checks.variable(item):
            raise invalid(errors)
        done.append(_set(model, application, {k: v for k, v in item.items() if k in taken}))
    return _shown(model, done, 201)


def create_variable(model: Model, call: Call) -> Response:
    application = _application(model, call)
    item = _checked_item(model, call)
    if _find(application, item) is not None:
        raise Refused(409, "Environment variable already exists. Use PATCH request to update it.")
    return JSONResponse({"uuid": _set(model, application, item).uuid}, 201)


def update_variable(model: Model, call: Call) -> Response:
    application = _application(model, call)
    item = _checked_item(model, call)
    if _find(application, item) is None:
        raise Refused(404, "Environment variable not found.")
    return _shown(model, [_set(model, application, item)], 201)


def delete_variable(model: Model, call: Call) -> Response:
    application = _application(model, call)
    left = [one for one in application.variables if one.uuid != call.parameters["variable"]]
    if len(left) == len(application.variables):
        raise Refused(404, "Environment variable not found.")
    application.variables = left
    return JSONResponse({"message": "Environment variable deleted."})


def _checked_item(model: Model, call: Call) -> dict[str, Any]:
    unknown = checks.unknown_fields(call.body, checks.VARIABLE, model.rules.release)
    if errors := checks.variable(call.body) | unknown:
        raise invalid(errors)
    return call.body


def _find(application: Application, item: dict[str, Any]) -> Variable | None:
    preview = checks.boolean(item.get("is_preview", False))
    return next(
        (
            one
            for one in application.variables
            if one.key == item["key"].strip() and one.is_preview == preview
        ),
        None,
    )


def _set(model: Model, application: Application, item: dict[str, Any]) -> Variable:
    """Add or change a variable. A flag that is left out is reset, but for where it is used."""
    flags = {name: checks.boolean(item[name]) for name in checks.FLAGS & item.keys()}
    flags = {"is_literal": False, "is_multiline": False, "is_shown_once": False, **flags}
    found = _find(application, item)
    if found is None:
        found = Variable(model.new_uuid(), item["key"].strip(), item.get("value") or "", **flags)
        model.add_variable(application, found)
    else:
        found.value = item.get("value") or ""
        for name, value in flags.items():
            setattr(found, name, value)
    return found


def _shown(model: Model, variables: list[Variable], status: int = 200) -> Response:
    sensitive = bool({"root", "read:sensitive"} & set(model.rules.abilities))
    return JSONResponse([shapes.variable(one, sensitive=sensitive) for one in variables], status)


# Deployments


def list_deployments(model: Model, _: Call) -> Response:
    return JSONResponse(shapes.deployments(model, model.active))


def get_deployment(model: Model, call: Call) -> Response:
    return JSONResponse(shapes.deployment(model, _deployment(model, call)))


def list_deployments_of(model: Model, call: Call) -> Response:
    skip, take = call.query.get("skip", "0"), call.query.get("take", "10")
    errors: checks.Errors = {}
    if not skip.isdecimal():
        errors["skip"] = ["The skip field must be at least 0."]
    if not take.isdecimal() or int(take) < 1:
        errors["take"] = ["The take field must be at least 1."]
    if errors:
        raise invalid(errors)
    newest_first = _application(model, call).deployments[::-1]
    page = newest_first[int(skip) : int(skip) + int(take)]
    shown = [shapes.deployment(model, one) for one in page]
    return JSONResponse({"count": len(newest_first), "deployments": shown})


def cancel_deployment(model: Model, call: Call) -> Response:
    deployment = _deployment(model, call)
    if not model.cancel_deployment(deployment):
        status = deployment.status
        raise Refused(400, f"Deployment cannot be cancelled. Current status: {status}")
    return JSONResponse(
        {
            "message": "Deployment cancelled successfully.",
            "deployment_uuid": deployment.uuid,
            "status": str(deployment.status),
        }
    )


def _deployment(model: Model, call: Call) -> Deployment:
    deployment = model.deployments.get(call.parameters["uuid"])
    if deployment is None:
        raise Refused(404, "Deployment not found.")
    return deployment
