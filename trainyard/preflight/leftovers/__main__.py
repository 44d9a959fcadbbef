"""`python -m trainyard.preflight.leftovers --stack NAME`: what a destroyed stack left. Deletes nothing."""

from __future__ import annotations

import sys
from pathlib import Path

from infra.model import Settings
from trainyard.preflight.account import Account
from trainyard.preflight.command import main, say
from trainyard.preflight.leftovers.found import Sorted, Target, sort
from trainyard.preflight.leftovers.search import Search, search
from trainyard.preflight.leftovers.target import target_of


def lines(target: Target, found: Sorted, search: Search) -> list[str]:
    """What a person reads: leftovers, kept data, kinds that could not be asked, and the sum."""
    told = [f"left: {each}" for each in found.left]
    told += [f"kept: {each}, by protectData" for each in found.kept]
    told += [f"not checked: {name}: needs {permission}" for name, permission in search.unasked]
    told += [f"not checked: {name}: {error}" for name, error in search.failed]
    if found.left:
        end = f"{len(found.left)} thing{'s are' if len(found.left) > 1 else ' is'} left"
    else:
        end = (
            "nothing is left"
            if not search.unasked + search.failed
            else "nothing is left of what could be checked"
        )
    return [*told, f"verify-clean of stack {target.stack}: {end}"]


def ask(settings: Settings, account: Account, _state: Path | None = None) -> int:
    """Search the account; the exit code is 1 when something is left or could not be checked."""
    target = target_of(settings)
    searched = search(account, target)
    result = sort(target, searched.found)
    for line in lines(target, result, searched):
        say(line)
    return 1 if result.left or searched.unasked or searched.failed else 0


if __name__ == "__main__":
    # A stack is taken down when its reservation has ended, too.
    sys.exit(main("trainyard.preflight.leftovers", __doc__ or "", ask, takes_ended=True))
