"""What is due for nodes: in which order backups and saves follow each other."""

from __future__ import annotations

from banyankv.runtime.coordinator.due import Due


def test_a_node_whose_backup_is_postponed_is_saved_after_it() -> None:
    """Until a transfer ends it is due for nothing; then for its backup, and for a save after that."""
    due = Due(lambda: None)
    due.postpone((1,))
    due.save((1, 2))
    assert (list(due.to_back_up), list(due.to_save)) == ([], [2])
    due.room_came()
    due.save((1,))
    assert (list(due.to_back_up), list(due.to_save)) == ([1], [2, 1])
