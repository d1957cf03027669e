"""Which fields Coolify takes, in which version, and what it says of others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.fakes.coolify.rules import Version, beta

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

_FIRST_VERSIONS = {
    "autogenerate_domain": beta(454),
    "docker_images_to_keep": Version(4, 2, 0),
    "stop_grace_period": Version(4, 2, 0),
    "tags": Version(4, 2, 0),
    "is_consistent_container_name_enabled": Version(4, 3, 0),
    "is_runtime": beta(429),
    "is_buildtime": beta(429),
}
_FIRST_WITHOUT_PORTS = Version(4, 3, 0)

_COMMON = frozenset(
    {
        "connect_to_docker_network",
        "custom_docker_run_options",
        "custom_labels",
        "custom_network_aliases",
        "description",
        "docker_images_to_keep",
        "docker_registry_image_name",
        "docker_registry_image_tag",
        "domains",
        "force_domain_override",
        "health_check_command",
        "health_check_enabled",
        "health_check_host",
        "health_check_interval",
        "health_check_method",
        "health_check_path",
        "health_check_port",
        "health_check_response_text",
        "health_check_retries",
        "health_check_return_code",
        "health_check_scheme",
        "health_check_start_period",
        "health_check_timeout",
        "health_check_type",
        "instant_deploy",
        "is_consistent_container_name_enabled",
        "is_container_label_escape_enabled",
        "limits_cpu_shares",
        "limits_cpus",
        "limits_cpuset",
        "limits_memory",
        "limits_memory_reservation",
        "limits_memory_swap",
        "limits_memory_swappiness",
        "name",
        "ports_exposes",
        "ports_mappings",
        "post_deployment_command",
        "pre_deployment_command",
        "redirect",
        "stop_grace_period",
        "tags",
        "use_build_server",
    }
)
UPDATED = _COMMON
CREATED = _COMMON | {
    "autogenerate_domain",
    "destination_uuid",
    "environment_name",
    "environment_uuid",
    "project_uuid",
    "server_uuid",
}
FLAGS = frozenset(
    {
        "is_buildtime",
        "is_literal",
        "is_multiline",
        "is_preview",
        "is_runtime",
        "is_shown_once",
    }
)
VARIABLE = FLAGS | {"key", "value"}

_STRINGS = frozenset(
    {
        "custom_docker_run_options",
        "description",
        "docker_registry_image_name",
        "docker_registry_image_tag",
        "limits_cpus",
        "limits_memory",
        "name",
        "ports_exposes",
    }
)
_BOOLEANS = frozenset(
    {
        "autogenerate_domain",
        "force_domain_override",
        "instant_deploy",
        "is_consistent_container_name_enabled",
    }
)

_INTEGERS = {"docker_images_to_keep": range(101), "stop_grace_period": range(1, 3601)}
"""And which of them are taken."""

Errors = dict[str, Any]
"""By field: a string or an array of them, as it comes."""


def known(fields: Collection[str], release: Version) -> frozenset[str]:
    """Those fields that a version has."""
    return frozenset(
        name for name in fields if release >= _FIRST_VERSIONS.get(name, Version(0, 0, 0))
    )


def unknown_fields(body: Iterable[str], fields: Collection[str], release: Version) -> Errors:
    """An error for every field that a version has not."""
    taken = known(fields, release)
    return {name: ["This field is not allowed."] for name in body if name not in taken}


def wrong_types(body: dict[str, Any]) -> Errors:
    """An error for every value of another type."""
    errors: Errors = {}
    for name, value in body.items():
        words = name.replace("_", " ")
        if name in _STRINGS and not isinstance(value, str | None):
            errors[name] = f"The {words} field must be a string."
        elif name in _BOOLEANS and not is_boolean(value):
            errors[name] = f"The {words} field must be true or false."
        elif name in _INTEGERS and value is not None and value not in _INTEGERS[name]:
            taken = _INTEGERS[name]
            errors[name] = [f"The {words} field must be between {taken[0]} and {taken[-1]}."]
    return errors


def creation(body: dict[str, Any], release: Version) -> Errors:
    """What is wrong with the fields of a new application."""
    required = [
        "project_uuid",
        "server_uuid",
        "docker_registry_image_name",
        *(["ports_exposes"] if release < _FIRST_WITHOUT_PORTS else []),
    ]
    missing = {
        name: [f"The {name.replace('_', ' ')} field is required."]
        for name in required
        if not body.get(name)
    }
    return missing | wrong_types(body) | unknown_fields(body, CREATED, release)


def update(body: dict[str, Any], release: Version) -> Errors:
    """What is wrong with the fields of a change."""
    return wrong_types(body) | unknown_fields(body, UPDATED, release)


def variable(item: Any) -> Errors:
    """What is wrong with a variable."""
    if not isinstance(item, dict):
        return {"key": ["The key field is required."]}
    errors: Errors = {}
    if not isinstance(item.get("key"), str) or not item["key"]:
        errors["key"] = ["The key field is required."]
    if not isinstance(item.get("value"), str | None):
        errors["value"] = ["The value field must be a string."]
    for name in FLAGS & item.keys():
        if not is_boolean(item[name]):
            errors[name] = [f"The {name.replace('_', ' ')} field must be true or false."]
    return errors


def is_boolean(value: Any) -> bool:
    """Whether Laravel takes it for one."""
    return isinstance(value, bool) or value in (0, 1, "0", "1")


def boolean(value: Any) -> bool:
    """What Laravel reads as true."""
    return value is True or value in (1, "1", "true", "on", "yes")
