"""Check the machine: Python, git, the home folder and its contents, and the endpoint that reads answers.

The checks create nothing and cost nothing. The only requests that leave the machine are sent to the configured endpoint
and the configured collector of traces, each with its own key. `doctor.py` checks agents.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from http.client import HTTPException
from typing import Literal, NamedTuple

from rolecall.agents import ADAPTERS
from rolecall.agents.sandbox import Layers
from rolecall.errors import Hint, NotFound, RolecallError, UsageError
from rolecall.settings import capabilities, config
from rolecall.settings.mask import secrets_of
from rolecall.settings.model_request import ModelRequest, excerpt
from rolecall.settings.models import Endpoint, extract_endpoint
from rolecall.settings.settings import Settings, collector, problems
from rolecall.store.store import Store
from rolecall.traces import otlp

PATIENCE = 5.0
"""Seconds to wait for an endpoint."""


class Check(NamedTuple):
    """The result of one check. `fix` says how to repair a problem."""

    name: str
    state: Literal["ok", "warning", "problem"]
    text: str
    fix: str = ""


def check_home(open_store: Callable[[str], Store], *, url: str | None = None) -> list[Check]:
    """Check Python, the home folder and its contents. `open_store` opens a store without creating it."""
    checks = [Check("python", "ok", f"{sys.version.split()[0]} ({sys.executable})")]

    home = nearest = config.home()
    while not os.path.lexists(nearest):
        nearest = os.path.dirname(nearest)
    if os.path.isdir(nearest) and os.access(nearest, os.W_OK | os.X_OK):
        checks.append(Check("home", "ok", home if nearest == home else f"{home} (made when it is needed)"))
    else:
        fix = f"Make sure that you can write to {nearest}, or set ROLECALL_HOME to another folder."
        checks.append(Check("home", "problem", f"the home {home} cannot be written", fix))

    path, private = config.config_path(), [os.path.join(home, ".env")]
    try:
        text = config.read_text(path)
        settings = config.parse(text, path)
        private += [path] if secrets_of(settings) else []
        config.env_file()
        found = problems(settings, text, source=path, adapters=(*ADAPTERS, "human"))
        fix = Hint("Correct it", "change_setting")
        checks += [Check("configuration", "problem", f"{one.place}: {one.text}", fix) for one in found]
        if not found:
            there = path if os.path.exists(path) else f"{path} (not written yet)"
            checks.append(Check("configuration", "ok", there))
    except RolecallError as error:
        checks.append(Check("configuration", "problem", error.message, error.hint))
    for path in private:
        if os.path.exists(path) and os.stat(path).st_mode & 0o077:
            checks.append(Check("keys", "warning", f"{path} can be read by others", f"chmod 600 {path}"))

    try:
        url = url or config.store_settings().url
        with open_store(url):
            checks.append(Check("store", "ok", config.without_password(url)))
    except NotFound:
        checks.append(Check("store", "ok", f"{config.without_password(url or '')} (made when it is needed)"))
    except RolecallError as error:
        checks.append(Check("store", "problem", error.message, error.hint))
    return checks


_NO_NAMESPACES = {
    "/proc/sys/kernel/unprivileged_userns_clone": ("0", "sudo sysctl -w kernel.unprivileged_userns_clone=1"),
    "/proc/sys/user/max_user_namespaces": ("0", "sudo sysctl -w user.max_user_namespaces=10000"),
    "/proc/sys/kernel/apparmor_restrict_unprivileged_userns": (
        "1",
        "Install bubblewrap, or: sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
    ),
}
"""Kernel settings that forbid user namespaces, each with the value that forbids them and how to change it."""


def check_sandbox(layers: Layers, env: Mapping[str, str]) -> Check:
    """Say what the kernel can enforce, and what prevents it from enforcing more."""
    weak = "restricted roles rely on the agents' own settings"
    if not sys.platform.startswith("linux"):
        return Check("sandbox", "ok", f"not Linux: {weak}")
    if env.get(capabilities.SANDBOX_VARIABLE) == "off":
        name = capabilities.SANDBOX_VARIABLE
        return Check("sandbox", "warning", f"switched off by {name}: {weak}", f"unset {name}")
    has = [f"Landlock {layers.landlock}"] if layers.landlock else []
    if layers.namespaces:
        how = " by bubblewrap" if layers.namespaces == "bubblewrap" else ""
        pids = ", process ids" if layers.has_pids else ""
        has.append(f"namespaces{how} for mounts{pids} and the network")
    missing, fix = [], ""
    if not layers.landlock:
        missing.append("the kernel has no Landlock, so `read` and `no_shell_exec` are not enforced")
    if not layers.namespaces:
        why, fix = "", "Install bubblewrap, or allow user namespaces where this container is started."
        found = [(path, change) for path, (value, change) in _NO_NAMESPACES.items() if _read(path) == value]
        if found:
            why, fix = f" ({found[0][0].removeprefix('/proc/sys/').replace('/', '.')})", found[0][1]
        missing.append(f"no user namespaces{why}, so `network` is not enforced")
    text = ", ".join(has) or f"nothing can be enforced: {weak}"
    return Check("sandbox", "warning" if missing else "ok", "; ".join([text, *missing]), fix)


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


async def check_extract(
    overrides: Sequence[Settings | None],
    settings: Settings,
    env: Mapping[str, str],
    *,
    project: Settings | None = None,
) -> list[Check]:
    """Check the configured endpoint and the endpoints that roles name in their overrides, each once. `project` is
    the `extract` section of rolecall.yaml. An endpoint whose address comes from a file of the project is asked without
    its key, so that checking somebody's project sends no secret anywhere."""
    own = (settings.get("extract") or {}).get("baseUrl")
    if project is not None:
        settings = {**settings, "extract": project}
    endpoints: dict[tuple[str, str], Endpoint] = {}
    withheld: dict[str, Endpoint] = {}
    wrong: dict[str, Check] = {}
    for level in [None, *overrides]:
        try:
            endpoint = extract_endpoint(settings, env, level)
        except UsageError as error:
            wrong[error.message] = Check("extract", "problem", error.message, error.hint)
            continue
        if endpoint is not None:
            of_files = {(section or {}).get("baseUrl") for section in (level, project)} - {own}
            if endpoint.api_key and endpoint.base_url in of_files:
                withheld[endpoint.base_url] = endpoint._replace(api_key=None)
            else:
                endpoints[endpoint.base_url, endpoint.api_key or ""] = endpoint
    if not endpoints and not withheld and not wrong:
        text = "no model is configured to read answers that are not in the required form (optional)"
        return [Check("extract", "ok", text)]
    asked = [check_endpoint(endpoint) for endpoint in endpoints.values()]
    asked += [check_endpoint(endpoint, is_key_withheld=True) for endpoint in withheld.values()]
    return [*wrong.values(), *await asyncio.gather(*asked)]


async def check_endpoint(
    endpoint: Endpoint, *, is_key_withheld: bool = False, patience: float = PATIENCE
) -> Check:
    """Check that a model's endpoint answers, by asking for its list of models, which is free."""
    place, key, fault = endpoint.place, endpoint.api_key or "", ""
    try:
        request = ModelRequest(endpoint._replace(timeout=patience), "/models", "the extract model")
        status, _, headers = await asyncio.to_thread(request.send, None, most=0)
        if status in (401, 403) and not is_key_withheld:
            what = "refused the key" if key else "wants a key"
            fix = Hint("Set the key of the extract model", "set_up")
            return Check("extract", "problem", f"{place} {what} (HTTP {status})", fix)
        if 300 <= status < 400:
            fault = f"sends a redirect (HTTP {status}), which is not followed"
        elif status == 404 and "html" in headers.get("Content-Type", ""):
            fault = "sent a web page (HTTP 404), so it is not a model endpoint"
    except UsageError as error:
        return Check("extract", "problem", error.message, error.hint)
    except TimeoutError:
        fault = f"did not answer within {patience:g} s"
    except (OSError, ValueError, HTTPException) as error:
        fault = f"cannot be reached: {excerpt(error, key)}"
    if fault:
        fix = Hint("Check the base URL, and make sure that the extract model is up", "list_settings")
        return Check("extract", "problem", f"{place} {fault}", fix)
    state: Literal["ok", "warning"] = "warning" if status >= 500 else "ok"
    how = ", asked without its key" if is_key_withheld else ""
    return Check("extract", state, f"{place} answers (HTTP {status}{how}), model {endpoint.model}")


async def check_collector(settings: Settings, env: Mapping[str, str]) -> list[Check]:
    """Check that the configured collector of traces, if any, takes a request without spans."""
    try:
        found = collector(settings, env)
        if found is None:
            return []
        await asyncio.to_thread(otlp.probe, found)
    except otlp.CollectorError as error:  # threads run without a collector
        return [Check("traces", "warning", error.message, error.hint)]
    except UsageError as error:
        return [Check("traces", "problem", error.message, error.hint)]
    place = found.url.partition("?")[0]  # a query may contain a key
    return [Check("traces", "ok", f"{place} takes traces")]
