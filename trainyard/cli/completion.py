"""Complete the command line of `trainyard` in bash, zsh and fish. Entry points: `script()` and `suggestions()`.

The scripts ask `trainyard __complete WORD...` at each press of the Tab key: the last word is the one to complete. The
answer is one suggestion per line. For `--stack=de` it has the values alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainyard import stack_files
from trainyard.cli.arguments import parser
from trainyard.completion import CommandLine

# The hidden command of the scripts; cobra's programs use the same name.
COMPLETE = "__complete"
# Options whose value is the name of a stack.
STACK_OPTIONS = ("stack", "confirm")

# bash splits words at `=` by itself (COMP_WORDBREAKS), so that a lone `=` is left out.
_BASH = """\
_trainyard() {
  local word words=()
  for word in "${COMP_WORDS[@]:1:COMP_CWORD}"; do
    [[ $word == "=" ]] || words+=("$word")
  done
  [[ ${COMP_WORDS[COMP_CWORD]} != "=" ]] || words+=("")
  mapfile -t COMPREPLY < <("${COMP_WORDS[0]/#\\~/$HOME}" __complete "${words[@]}" 2>/dev/null)
}
complete -F _trainyard trainyard
"""
_ZSH = """\
#compdef trainyard
_trainyard() {
  local -a found
  found=("${(@f)$("${(e)words[1]/#\\~/$HOME}" __complete "${(@)words[2,CURRENT]}" 2>/dev/null)}")
  compset -P '--*='
  compadd -- ${found:#}
}
compdef _trainyard trainyard
"""
_FISH = """\
function __trainyard
  set --local words (commandline --tokenize --current-process --cut-at-cursor)
  set --local last (commandline --current-token --cut-at-cursor)
  set --local flag (string match --regex -- '^--[^=]+=' $last)
  eval $words[1] __complete (string escape -- $words[2..-1] "$last") 2>/dev/null | while read --local each
    printf '%s\\n' "$flag$each"
  end
end
complete --command trainyard --no-files --arguments '(__trainyard)'
"""
SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


def script(shell: str) -> str:
    """Return the completion script of a shell."""
    return f"# Completion of trainyard for {shell}: see `trainyard completion --help`.\n" + SCRIPTS[shell]


def suggestions(words: Sequence[str]) -> list[str]:
    """Return the words that may replace the last one."""
    *before, last = words or [""]
    line = CommandLine(parser(), before)
    last = line.split_value(last)
    if line.waits is not None:
        found = _values(line)
    elif last.startswith("-"):
        found = sorted(line.flags)
    elif not line.command:
        found = list(line.commands)
    else:
        argument = line.positional()
        found = [str(choice) for choice in (argument.choices if argument else None) or ()]
    return [each for each in found if each.startswith(last)]


def _values(line: CommandLine) -> list[str]:
    action = line.waits
    if action is None:
        return []
    return (
        stack_files.names() if action.dest in STACK_OPTIONS else [str(each) for each in action.choices or ()]
    )
