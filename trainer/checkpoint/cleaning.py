"""Removes checkpoints that are too many and remains of failed saves, while the place is this run's. Needs no torch."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress

from trainer.checkpoint import layout
from trainer.checkpoint.owner import Owner
from trainer.stores import Store, StoreError


class Cleaner:
    """Deletes in one store, for rank 0. `owner` is its claim, None where nobody else can come.

    Before each deletion the claim is looked at: what lies there belongs to whoever took the place over.
    """

    def __init__(self, store: Store, keep: int, owner: Owner | None) -> None:
        self._store, self._keep, self._owner = store, keep, owner

    def clear(self, step: int) -> None:
        """Remove all that lies in a step's folder. Raises StoreError, also when the place was taken over."""
        files = layout.by_step(self._store.list(f"{layout.name(step)}/")).get(step, {})
        self._delete(step, files)

    def clear_unfinished(self, step: int) -> None:
        """After a failure: a full disk has room again. A manifest whose answer was lost may be there; it stays."""
        with suppress(StoreError):
            if step not in layout.finished(self._store.list(f"{layout.name(step)}/")):
                self.clear(step)

    def surplus(self, newest_good: int, damaged: Collection[int]) -> Iterator[tuple[int, StoreError]]:
        """Keep as many as are to be kept. Gives each step that could not be deleted, and why.

        Raises StoreError when the store cannot be listed.
        """
        listing = self._store.list("step-")
        steps = layout.by_step(listing)
        for step in layout.surplus(listing, newest_good, self._keep, damaged):
            try:
                self._delete(step, steps[step])
            except StoreError as error:
                yield step, error

    def _delete(self, step: int, files: Iterable[str]) -> None:
        paths = layout.in_order_of_deletion(step, files)
        if not paths:
            return
        if self._owner is not None and (self._owner.lost or not self._owner.held.is_newest(self._store)):
            place = self._store.uri(layout.name(step))
            raise StoreError(f"cannot delete {place}: it was taken over", "refused")
        self._store.delete(paths)
