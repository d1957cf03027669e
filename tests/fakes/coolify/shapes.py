"""What Coolify's answers look like."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.fakes.coolify.model import Model
    from tests.fakes.coolify.records import (
        Application,
        Deployment,
        Server,
        Variable,
    )

ENVIRONMENT_ID = 1

_EPOCH = datetime(2026, 8, 1, tzinfo=UTC)
_NULL_UNLESS_SET = (
    "description",
    "docker_registry_image_name",
    "docker_registry_image_tag",
    "custom_docker_run_options",
    "ports_exposes",
    "ports_mappings",
    "custom_labels",
)
_LIMITS = {
    "limits_cpus": "0",
    "limits_cpu_shares": 1024,
    "limits_cpuset": None,
    "limits_memory": "0",
    "limits_memory_reservation": "0",
    "limits_memory_swap": "0",
    "limits_memory_swappiness": 60,
}


def moment(time: float) -> str:
    """A time of the event loop as Laravel writes it."""
    return (_EPOCH + timedelta(seconds=time)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def application(model: Model, one: Application) -> dict[str, Any]:
    """An application as in the list, without the number that its deployments name it by."""
    server = model.servers[one.server_uuid]
    return {
        "uuid": one.uuid,
        "name": one.name,
        **{name: one.fields.get(name) for name in _NULL_UNLESS_SET},
        **_LIMITS,
        **one.limits,
        "build_pack": "dockerimage",
        "created_at": moment(one.created_at),
        "destination": {
            "uuid": model.destinations[server.uuid],
            "name": "coolify",
            "network": "coolify",
            "server": {"uuid": server.uuid, "name": server.uuid, "ip": server.ip},
        },
        "environment_id": ENVIRONMENT_ID,
        "fqdn": one.fields.get("domains"),
        "health_check_enabled": False,
        "restart_count": one.restart_count,
        "status": model.shown_status(one),
    }


def application_in_full(model: Model, one: Application) -> dict[str, Any]:
    """An application by itself, with its settings."""
    settings = {
        "docker_images_to_keep": one.fields.get("docker_images_to_keep", 2),
        "is_auto_deploy_enabled": True,
        "is_consistent_container_name_enabled": one.consistent_name,
        "stop_grace_period": one.fields.get("stop_grace_period"),
    }
    return {**application(model, one), "settings": settings}


def variable(one: Variable, *, sensitive: bool) -> dict[str, Any]:
    """A variable; its value is for a token that may see it."""
    return {name: value for name, value in vars(one).items() if sensitive or name != "value"} | {
        "is_shared": False
    }


def deployment(model: Model, one: Deployment) -> dict[str, Any]:
    """A row of the queue. Only its URL tells of which application, and a name that may change."""
    path = f"/project/{model.project_uuid}/environment/{model.environment_uuid}"
    return {
        "deployment_uuid": one.uuid,
        "application_id": str(one.application.number),
        "application_name": one.application.name,
        "commit": "HEAD",
        "created_at": moment(one.created_at),
        "deployment_url": f"{path}/application/{one.application_uuid}/deployment/{one.uuid}",
        "finished_at": None if one.finished_at is None else moment(one.finished_at),
        "force_rebuild": False,
        "is_api": True,
        "pull_request_id": 0,
        "server_name": one.server_uuid,
        "status": str(one.status),
        "updated_at": moment(one.updated_at),
    }


def deployments(model: Model, active: Sequence[Deployment]) -> Any:
    """The active deployments: an array, or as PHP writes one with gaps, an object."""
    shown = [deployment(model, one) for one in active]
    if len(shown) >= 2 and len(shown) % 2 == 0:
        return {str(index): one for index, one in enumerate(shown)}
    return shown


def server(one: Server) -> dict[str, Any]:
    """A server by itself: whether it can be used stands in its settings."""
    usable = {"is_reachable": one.reachable, "is_usable": one.reachable}
    return {
        "uuid": one.uuid,
        "name": one.uuid,
        "description": None,
        "ip": one.ip,
        "port": 22,
        "user": "root",
        "settings": {**one.settings, **usable},
    }


def listed_server(one: Server) -> dict[str, Any]:
    """A server in the list."""
    return {**server(one), "is_reachable": one.reachable, "is_usable": one.reachable}


_CLEANUP = (
    "docker_cleanup_frequency",
    "docker_cleanup_threshold",
    "force_docker_cleanup",
    "delete_unused_volumes",
    "delete_unused_networks",
    "disable_application_image_retention",
)


def cleanup(one: Server) -> dict[str, Any]:
    """When and how a server is cleaned up."""
    return {name: one.settings[name] for name in _CLEANUP}


def environments(model: Model) -> list[dict[str, Any]]:
    """The only environment there is."""
    name = model.environment_name
    return [{"id": ENVIRONMENT_ID, "uuid": model.environment_uuid, "name": name, "description": ""}]


def project(model: Model) -> dict[str, Any]:
    """The only project there is, without its environments."""
    return {"id": 1, "uuid": model.project_uuid, "name": "bots", "description": None}
