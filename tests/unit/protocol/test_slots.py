"""The slot registry: all or nothing, first come first served, kept from attempt to attempt."""

from __future__ import annotations

from penstock.protocol.slots import SlotPool


def pool(**workers: int) -> SlotPool:
    """A pool of workers with so many slots."""
    made = SlotPool()
    for name, slots in workers.items():
        made.heard(name, slots)
    return made


def test_all_or_nothing() -> None:
    """A job that needs three of two slots gets none; with the third it gets all."""
    slots = pool(a=1, b=1)
    slots.want("j", 3)
    assert slots.allocate() == []
    assert slots.missing("j") == 1
    slots.heard("c", 1)
    assert slots.allocate() == ["j"]
    assert slots.offer("j") == {"a": 1, "b": 1, "c": 1}
    assert slots.free == 0


def test_a_small_job_is_not_kept_waiting_by_a_large_one() -> None:
    """What does not suffice for the first in the queue may suffice for the next."""
    slots = pool(a=2)
    slots.want("large", 3)
    slots.want("small", 1)
    assert slots.allocate() == ["small"]
    slots.heard("b", 2)
    assert slots.allocate() == ["large"]


def test_slots_stay_with_the_job_until_it_ends() -> None:
    """A lost worker is replaced, the others stay."""
    slots = pool(a=1, b=1, c=1)
    slots.want("j", 2)
    slots.allocate()
    assert slots.offer("j") == {"a": 1, "b": 1}
    slots.gone("a")
    assert slots.missing("j") == 0
    assert slots.allocate() == ["j"]
    assert slots.offer("j") == {"b": 1, "c": 1}
    slots.release("j")
    assert slots.free == slots.total == 2
    assert slots.idle("b")


def test_a_job_that_shrinks_gives_slots_back() -> None:
    """It keeps the workers that its attempt runs on."""
    slots = pool(a=1, b=1)
    slots.want("j", 2)
    slots.allocate()
    slots.want("j", 1)
    slots.keep("j", {"b"})
    assert slots.offer("j") == {"b": 1}
    assert slots.free == 1


def test_a_bound_worker_serves_only_its_job() -> None:
    """A process that holds the code of one job is no slot for another."""
    slots = SlotPool()
    slots.heard("a", 1, bound_to="old")
    slots.want("new", 1)
    assert slots.allocate() == []
    slots.heard("a", 1, bound_to="new")
    assert slots.allocate() == ["new"]


def test_slots_go_back_to_the_jobs_that_their_workers_are_bound_to() -> None:
    """Two workers were silent while they loaded the code of two jobs, and each was given to the other job meanwhile."""
    slots = SlotPool()
    slots.want("A", 1)
    slots.want("B", 1)
    slots.heard("a", 1)
    slots.heard("b", 1)
    assert slots.allocate() == ["A", "B"]
    for name in ("a", "b"):
        slots.gone(name)
    assert slots.allocate() == ["A", "B"]
    slots.heard("b", 1)
    slots.heard("a", 1)
    slots.allocate()
    slots.heard("a", 1, bound_to="B")
    slots.heard("b", 1, bound_to="A")
    slots.allocate()
    assert (slots.offer("A"), slots.offer("B")) == ({"b": 1}, {"a": 1})
    assert slots.free == 0


def test_only_the_job_that_a_worker_is_bound_to_keeps_slots_there() -> None:
    """The other one waits, and is told which slots it has left; a beat that says nothing new changes nothing."""
    slots = pool(a=2, b=1)
    slots.want("one", 1)
    slots.want("two", 2)
    assert slots.allocate() == ["one", "two"]
    assert slots.offer("two") == {"a": 1, "b": 1}
    slots.heard("a", 2, bound_to="one")
    assert slots.allocate() == ["two"]
    assert (slots.offer("one"), slots.offer("two")) == ({"a": 1}, {"b": 1})
    assert slots.missing("two") == 1
    slots.heard("a", 2, bound_to="one")
    assert slots.allocate() == []


def test_a_new_leader_learns_who_uses_what() -> None:
    """Slots of a running job are not given away."""
    slots = SlotPool()
    slots.heard("a", 1, running=["j"])
    slots.want("other", 1)
    assert slots.allocate() == []
    assert slots.offer("j") == {"a": 1}


def test_a_worker_that_comes_back_is_offered_again() -> None:
    """Lost, and heard again with the subtasks it had: the job hears of the slot although it is given nothing new."""
    slots = SlotPool()
    for name in "ab":
        slots.heard(name, 1)
    slots.want("j", 2)
    assert slots.allocate() == ["j"]
    assert slots.allocate() == []
    slots.gone("b")
    assert slots.allocate() == ["j"]
    slots.heard("b", 1, running=["j"])
    assert slots.allocate() == ["j"]
    assert slots.offer("j") == {"a": 1, "b": 1}


def test_low_numbers_are_taken_first() -> None:
    """By the numbers in the names, so that the highest task managers stay idle."""
    slots = SlotPool()
    for number in (10, 2, 1, 11):
        slots.heard(f"tm-{number}-f00/0-1", 1)
    slots.want("j", 2)
    slots.allocate()
    assert slots.offer("j") == {"tm-1-f00/0-1": 1, "tm-2-f00/0-1": 1}


def test_retired_workers_get_no_further_job() -> None:
    """Who has slots there keeps them; unretired, the others are given out again."""
    slots = pool(a=2, b=1)
    slots.want("here", 1)
    slots.allocate()
    slots.retire(["a"])
    slots.want("next", 2)
    assert slots.allocate() == []
    assert slots.missing("next") == 1
    assert slots.offer("here") == {"a": 1}
    slots.retire([])
    assert slots.allocate() == ["next"]


def test_what_jobs_lack_counts_no_free_slots() -> None:
    """Whoever scales adds what is free; jobs that want their own workers are somebody else's to serve."""
    slots = pool(a=2)
    slots.want("large", 5)
    slots.want("other", 3)
    slots.want("own", 7, own=True)
    assert slots.unmet == 8
    slots.want("small", 1)
    slots.allocate()
    assert slots.unmet == 8
    slots.release("large")
    assert slots.unmet == 3
