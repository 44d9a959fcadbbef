"""Build the first process of a worker's container. It forwards SIGTERM, and writes the termination message. Pure.

The kernel ignores SIGTERM for a first process without a handler (pid_namespaces(7)). torchrun has no handler while it
imports torch, which takes seconds, and a shell never forwards the signal. When such a worker is suspended or drained,
it would train until SIGKILL, and save nothing. https://pytorch.org/docs/stable/elastic/run.html says what torchrun does
with the signal.

It is a POSIX shell script, because every image has a shell. If mkfifo, tee, tail or a writable directory is missing,
the command runs without a copy of its output, and the kubelet uses the end of the log.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

# https://kubernetes.io/docs/tasks/debug/debug-application/determine-reason-pod-failure/: the default path, and the
# limit of the kubelet.
MESSAGE_PATH: Final = "/dev/termination-log"
MESSAGE_BYTES: Final = 4096
# Other processes print their tracebacks between that of the first one and torchrun's summary.
_KEPT_BYTES: Final = 262144
# Select the lines of the process that failed first on this node, and torchrun's summary of it
# (torch/distributed/elastic/multiprocessing/errors/__init__.py). Without a summary, select the last lines of all.
_PICK: Final = r"""
/^Root Cause \(first observed failure\):$/ { summary = ""; in_summary = 1 }
in_summary && /^=+$/ { in_summary = 0; next }
in_summary {
  if (/^ *rank *: [0-9]+ \(local_rank: [0-9]+\)/) { rank = $0; sub(/.*local_rank: /, "", rank); sub(/\).*/, "", rank) }
  if (/^(Root Cause| *(time|rank|exitcode) *: |\[[0-9]+\]:)/) summary = summary $0 "\n"
  next
}
{ line[++last] = $0 }
/^[EW][0-9]+ .*failed \(exitcode/ { agent = last }
END {
  own = "^\\[[A-Za-z_]+" rank "\\]:"
  for (i = 1; summary && i <= last; i++) if (line[i] ~ own) some = 1
  if (summary && agent && !some) last = agent - 1
  left = MOST - length(summary)
  for (i = last; i > 0; i--) {
    if (some && line[i] !~ own) continue
    text = substr(line[i], 1, 1000)
    left -= length(text) + 1
    if (left < 0) break
    kept = text "\n" kept
  }
  printf "%s%s", kept, summary
}
""".strip()
# `setsid` gives the command its own process group, so that the children of a shell get the signal as well, and may end
# after the shell. torchrun's processes have their own sessions, and torchrun forwards the signal to them. A `wait` that
# a signal interrupts is repeated. It returns 127 for a child whose exit code it has returned before.
# Kubernetes counts a pod that exits with 0 as succeeded, also a deleted one. That may complete a Job, and an elastic
# Job then deletes its running workers. A command that exits with 0 after the signal has saved, but has not finished.
# An interrupted `wait` returns 143, but rarely 255 in bash 5.2, which then has lost the exit code of the child.
#
# If TORCHRUN_LOG names a file, the command's output is also copied there. The sidecar archives it
# (trainyard/workspace/logs.py).
#
# `idle_agents` prints the torchrun agents in the command's session without a process of their own. In its exit barrier
# and in the rendezvous, an agent waits in C++ for up to five minutes and ignores signals
# (torch/distributed/elastic/agent/server/api.py, `_exit_barrier`). An idle agent has nothing to save, so it is killed
# three seconds after the signal. /proc/PID/stat ends with: state, parent, process group, session (proc_pid_stat(5)).
# The processes of an agent have TORCHELASTIC_RUN_ID in their environment, the agent has not.
_SCRIPT: Final = r"""
terminate() { kill -TERM "-$child" 2>/dev/null || kill -TERM "$child" 2>/dev/null; }
idle_agents() {
  parents=" " agents=
  for process in /proc/[0-9]*; do
    read -r line <"$process/stat" || continue
    set -- ${line##*) }
    [ "$1" = Z ] || parents="$parents$2 "
    [ "$4" != "$child" ] || agents="$agents ${process#/proc/}"
  done
  for pid in $agents; do
    case $parents in *" $pid "*) continue ;; esac
    words=; read -r words <"/proc/$pid/cmdline"
    case $words in *torchrun* | *torch.distributed.run*) ;; *) continue ;; esac
    while words=; read -r words || [ "$words" ]; do
      case $words in *TORCHELASTIC_RUN_ID=*) continue 2 ;; esac
    done <"/proc/$pid/environ"
    printf '%s ' "$pid"
  done
}
kill_idle_agents() {
  idle=
  while sleep 1 && kill -0 "$child"; do
    for pid in $(idle_agents); do
      idle="$idle $pid "
      case $idle in *" $pid "*" $pid "*" $pid "*) kill -KILL "$pid" ;; esac
    done
  done
}
child= signaled= interrupted= before= after= copier= keep= code=127
on_signal() {
  interrupted=1
  [ "$signaled" ] || { signaled=1; [ -z "$child" ] || kill_idle_agents >/dev/null 2>&1 & }
  [ -z "$child" ] || terminate
}
trap on_signal TERM INT
for directory in "${TMPDIR:-/tmp}" /dev/shm; do
  [ "$keep" ] || keep=$(mktemp -d "$directory/torchrun-XXXXXX" 2>/dev/null)
done
if [ "$keep" ] && command -v tee && command -v tail && mkfifo "$keep/out" "$keep/end"; then
  tail -c KEPT <"$keep/end" >"$keep/tail" 3>&- &
  keeper=$!
  (trap '' PIPE TERM INT; exec tee "$keep/end" ${TORCHRUN_LOG:+"$TORCHRUN_LOG"} <"$keep/out") >&3 &
  copier=$!
fi 3>&1 >/dev/null 2>&1
if command -v setsid >/dev/null 2>&1; then set -- setsid "$@"; fi
if [ "$copier" ]; then "$@" >"$keep/out" 2>&1 & else "$@" & fi
child=$!
[ -z "$signaled" ] || { terminate; kill_idle_agents >/dev/null 2>&1 & }
while interrupted=; do
  before=$signaled
  wait "$child" 2>/dev/null; now=$?
  case $interrupted:$now in 1:255) now=143 ;; esac
  [ "$now" = 127 ] || { code=$now; after=$before; }
  [ "$interrupted" ] || break
done
while [ "$signaled" ] && kill -0 "-$child" 2>/dev/null; do sleep 1; done
case $after:$code in 1:0 | 1:137) code=143 ;; esac
if [ "$copier" ]; then
  (sleep 5; kill -KILL "$copier") >/dev/null 2>&1 &
  timer=$!
  while kill -0 "$copier" 2>/dev/null; do wait "$copier" 2>/dev/null; done
  wait "$keeper" 2>/dev/null
  kill "$timer" 2>/dev/null
  if [ "$code" != 0 ] && [ -w MESSAGE ]; then
    LC_ALL=C awk -v MOST=BYTES 'PICK' "$keep/tail" >MESSAGE || tail -c BYTES "$keep/tail" >MESSAGE
  fi 2>/dev/null
fi
[ -z "$keep" ] || rm -rf "$keep"
exit "$code"
""".strip()


def wrap_command(words: Iterable[str], message_path: str = MESSAGE_PATH) -> list[str]:
    """Return a container's command that runs `words` and ends with their exit code.

    After SIGTERM, the exit codes 0 and 137 (SIGKILL) become 143 (SIGTERM).

    Args:
        message_path: The container's `terminationMessagePath`.
    """
    quoted = "'" + message_path.replace("'", "'\\''") + "'"
    script = _SCRIPT.replace("PICK", _PICK).replace("MESSAGE", quoted)
    script = script.replace("KEPT", str(_KEPT_BYTES)).replace("BYTES", str(MESSAGE_BYTES))
    return ["sh", "-c", script.replace("$", "$$"), "sh", *words]
