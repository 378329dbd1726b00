"""Distinct types for what would otherwise all be numbers and strings."""

from typing import NewType

TaskId = NewType("TaskId", int)
LeaseId = NewType("LeaseId", int)
AttemptId = NewType("AttemptId", int)
GpuUuid = NewType("GpuUuid", str)
NodeName = NewType("NodeName", str)
