"""Distinct types for what would otherwise all be numbers and strings."""

from typing import NewType

TaskId = NewType("TaskId", int)
LeaseId = NewType("LeaseId", int)
AttemptId = NewType("AttemptId", int)
GpuUuid = NewType("GpuUuid", str)
NodeName = NewType("NodeName", str)

NODE_NAME_PATTERN = r"^\w[\w.-]*$"  # screens write node-1:0, and addresses /nodes/node-1
NODE_NAME_WORDS = "must be letters, digits, '.', '_' and '-', and begin with a letter or digit"
