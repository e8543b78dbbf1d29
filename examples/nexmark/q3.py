"""Nexmark 3, local items: who sells things of category 10 in Oregon, Idaho or California.

Persons and auctions become one stream of `Seen`, which is keyed by the person. A `KeyedProcess` joins the two: auctions
wait for their seller if they come before. As in the query, nothing is ever forgotten.
"""

from dataclasses import dataclass

from penstock import KeyedContext, KeyedProcess, ListState, Pipeline, ValueState, col, param
from penstock.connectors import files, generate, nexmark


@dataclass
class Local:
    name: str
    city: str
    state: str


@dataclass
class Seen:
    """A person, or an auction of one."""

    person: int
    local: Local | None
    auction: int | None


@dataclass
class Offer:
    name: str
    city: str
    state: str
    auction: int


def of_person(person: nexmark.Person) -> Seen:
    return Seen(person.id, Local(person.name, person.city, person.state), None)


def of_auction(auction: nexmark.Auction) -> Seen:
    return Seen(auction.seller, None, auction.id)


class LocalItems(KeyedProcess[Seen, Offer]):
    local = ValueState(Local)
    waiting = ListState(int)

    def on_row(self, row: Seen, ctx: KeyedContext[Offer]) -> None:
        if row.local is not None:
            self.local.set(row.local)
        if row.auction is not None:
            self.waiting.add(row.auction)
        local = self.local.get()
        if local is not None:
            for auction in self.waiting.get():
                ctx.emit(Offer(local.name, local.city, local.state, auction))
            self.waiting.clear()


p = Pipeline("nexmark-q3")

people = p.read(generate.Source(nexmark.people(), rows=param("people", 1_000)))
auctions = p.read(generate.Source(nexmark.auctions(), rows=param("auctions", 3_000)))
(
    people.filter(col("state").is_in(["OR", "ID", "CA"]))
    .map(of_person)
    .union(auctions.filter(col("category") == 10).map(of_auction))
    .key_by("person")
    .process(LocalItems())
    .write(files.Sink(param("out", "out/q3"), existing="replace"))
)

if __name__ == "__main__":
    p.run()
