#!/usr/bin/env bash
# Submits a file of tasks, waits until all have ended and says where their logs are.
#
#   ./run_batch.sh tasks.json [more flags of `lab-gpu submit-batch`]
#
#   HOST       the master (this user's own)
#   MAX_RETRY  tries after a failure of a task that does not say itself (1)
#   LOG_ROOT   where the logs shall lie (the master's choice)
#
# Exit code: 0 all completed, 1 a task failed, 2 a mistake in the file or flags, 3 no master.
set -u

if [ $# -lt 1 ]; then
  echo "usage: run_batch.sh TASKS.json [flags of lab-gpu submit-batch]" >&2
  exit 2
fi

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
if [ -x "$here/.venv/bin/lab-gpu" ]; then
  lab_gpu=$here/.venv/bin/lab-gpu
elif ! lab_gpu=$(command -v lab-gpu); then
  echo "run_batch.sh: cannot find lab-gpu: neither $here/.venv nor PATH has it; run 'make install' in $here" >&2
  exit 1
fi

# Some shells set HOST to this machine's own name: then nobody meant it.
if [ -n "${HOST:-}" ] && [ "$HOST" != "$(uname -n)" ]; then
  export LAB_GPU_HOST=$HOST
fi

trap 'exit 130' INT

file=$1
shift
ids=$("$lab_gpu" submit-batch --quiet --retries "${MAX_RETRY:-1}" ${LOG_ROOT:+--log-root "$LOG_ROOT"} \
  --file "$file" "$@") || exit
echo "submitted: tasks $ids"

# A master that plans only by hand gets its hand here.
if "$lab_gpu" server status --json 2>/dev/null | grep -q '"manual_tick": *true'; then
  while "$lab_gpu" server tick >/dev/null && ! "$lab_gpu" wait --quiet --timeout 1 "$ids" 2>/dev/null; do
    open=$("$lab_gpu" list --all --state open --json "$ids") || break
    case $open in *'"id":'*) ;; *) break ;; esac
  done
fi

"$lab_gpu" wait "$ids"
failed=$?

"$lab_gpu" logs --path "$ids" 2>/dev/null | while IFS= read -r path; do
  printf '%s\n' "${path%/*}"
done | sort -u | while IFS= read -r folder; do
  echo "logs: $folder"
done

[ "$failed" -eq 0 ] || exit 1
