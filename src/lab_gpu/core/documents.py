"""Values to plain documents and back: what the ledger stores and what travels between loop and doors.

A document leaves out what has its default, so that old rows stay readable when a field is added.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from lab_gpu.core.ids import GpuUuid, NodeName, TaskId
from lab_gpu.core.model import Activation, After, Dependency, Grant, NewTask, Request, RetryRule, TaskSpec

Doc = dict[str, Any]


def _defaults(kind: type[Any]) -> dict[str, Any]:
    found = {}
    for each in fields(kind):
        if each.default is not MISSING:
            found[each.name] = each.default
        elif each.default_factory is not MISSING:
            found[each.name] = each.default_factory()
    return found


_REQUEST = _defaults(Request)
_SPEC = _defaults(TaskSpec)
_RETRY = _defaults(RetryRule)
_TASK = _defaults(NewTask)
_TASK_PLAIN = [
    each.name for each in fields(NewTask) if each.name not in ("request", "spec", "environment", "after")
]


def _sparse(value: Any, defaults: Mapping[str, Any], names: Any) -> Doc:
    doc = {}
    for name in names:
        held = getattr(value, name)
        if name not in defaults or held != defaults[name]:
            doc[name] = held
    return doc


def request_to_doc(request: Request) -> Doc:
    return _sparse(request, _REQUEST, _REQUEST)


def request_to_full_doc(request: Request) -> Doc:
    return {name: getattr(request, name) for name in _REQUEST}


def request_from_doc(doc: Mapping[str, Any]) -> Request:
    known = {name: value for name, value in doc.items() if name in _REQUEST}
    if "gpu_ids" in known:
        known["gpu_ids"] = tuple(known["gpu_ids"])
    return Request(**known)


def spec_to_doc(spec: TaskSpec) -> Doc:
    doc = _sparse(spec, _SPEC, _SPEC)
    if "activation" in doc:
        doc["activation"] = (
            {"kind": spec.activation.kind, "path": spec.activation.path}
            | ({"conda_root": spec.activation.conda_root} if spec.activation.conda_root else {})
            if spec.activation
            else None
        )
    if "retry" in doc:
        doc["retry"] = _sparse(spec.retry, _RETRY, _RETRY)
    if "setenv" in doc:
        doc["setenv"] = dict(spec.setenv)
    return doc


def spec_from_doc(doc: Mapping[str, Any]) -> TaskSpec:
    known = {name: value for name, value in doc.items() if name in _SPEC}
    if known.get("activation"):
        known["activation"] = Activation(**known["activation"])
    if "retry" in known:
        known["retry"] = RetryRule(**{k: v for k, v in known["retry"].items() if k in _RETRY})
    return TaskSpec(**known)


def new_task_to_doc(task: NewTask) -> Doc:
    """Without the environment: it travels once for all tasks of a submit."""
    doc = _sparse(task, _TASK, _TASK_PLAIN)
    doc["request"] = request_to_doc(task.request)
    doc["spec"] = spec_to_doc(task.spec)
    if task.after:
        doc["after"] = [{"on": each.on, "kind": each.kind.value} for each in task.after]
    return doc


def new_task_from_doc(doc: Mapping[str, Any]) -> NewTask:
    known = {name: doc[name] for name in _TASK_PLAIN if name in doc}
    return NewTask(
        **known,
        request=request_from_doc(doc.get("request", {})),
        spec=spec_from_doc(doc.get("spec", {})),
        after=tuple(Dependency(TaskId(each["on"]), After(each["kind"])) for each in doc.get("after", ())),
    )


def gpus_to_doc(grant: Grant) -> list[Doc]:
    return [{"uuid": uuid, "index": index} for uuid, index in zip(grant.gpus, grant.indices, strict=True)]


def grant_from_doc(node: str, gpus: list[Doc], vram_mib: int | None, virtual: bool) -> Grant:
    return Grant(
        NodeName(node),
        tuple(GpuUuid(each["uuid"]) for each in gpus),
        tuple(each["index"] for each in gpus),
        vram_mib,
        virtual,
    )
