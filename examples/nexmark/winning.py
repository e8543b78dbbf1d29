"""The winning bid of every auction, which queries 4 and 6 build on.

Auctions and bids become one stream, keyed by the auction. The winner is the highest bid between the beginning and the end
of the auction, and of equal ones the earliest; it is known when the watermark reaches the end.
"""

from dataclasses import dataclass
from datetime import datetime

from penstock import KeyedContext, KeyedProcess, ListState, Pipeline, Stream, ValueState, param
from penstock.connectors import generate, nexmark


@dataclass
class Sale:
    """What is for sale, and until when."""

    category: int
    seller: int
    begin: datetime
    end: datetime


@dataclass
class Offer:
    price: int
    at: datetime


@dataclass
class Event:
    """An auction, or a bid for one."""

    auction: int
    sale: Sale | None
    offer: Offer | None


@dataclass
class Winner:
    auction: int
    category: int
    seller: int
    price: int


def of_auction(auction: nexmark.Auction) -> Event:
    return Event(auction.id, Sale(auction.category, auction.seller, auction.at, auction.expires), None)


def of_bid(bid: nexmark.Bid) -> Event:
    return Event(bid.auction, None, Offer(bid.price, bid.at))


class Winning(KeyedProcess[Event, Winner]):
    sale = ValueState(Sale)
    best = ValueState(Offer)
    early = ListState(Offer)
    """Bids that came before their auction did: the two are read side by side."""

    def on_row(self, row: Event, ctx: KeyedContext[Winner]) -> None:
        if row.sale is not None:
            self.sale.set(row.sale)
            ctx.event_timer(row.sale.end)
            for offer in self.early.get():
                self._bid(offer, row.sale)
            self.early.clear()
        if row.offer is not None:
            sale = self.sale.get()
            if sale is not None:
                self._bid(row.offer, sale)
            else:
                self.early.add(row.offer)
                ctx.event_timer(row.offer.at)

    def _bid(self, offer: Offer, sale: Sale) -> None:
        best = self.best.get()
        if sale.begin <= offer.at <= sale.end and (
            best is None or (offer.price, best.at) > (best.price, offer.at)  # of equal prices the earlier one
        ):
            self.best.set(offer)

    def on_timer(self, at: datetime, ctx: KeyedContext[Winner]) -> None:
        sale, best = self.sale.get(), self.best.get()
        if sale is None:  # what begins after this moment is not the auction of bids up to it
            self.early.update([offer for offer in self.early.get() if offer.at > at])
        elif at == sale.end:
            if best is not None:
                ctx.emit(Winner(ctx.key, sale.category, sale.seller, best.price))
            self.sale.clear()
            self.best.clear()


def winners(p: Pipeline) -> Stream[Winner]:
    """The winning bids; the event time of each is the end of its auction."""
    interval = param("interval", "100us")
    auctions = p.read(generate.Source(nexmark.auctions(interval=interval), rows=param("auctions", 3_000)))
    bids = p.read(generate.Source(nexmark.bids(interval=interval), rows=param("bids", 46_000)))
    return auctions.map(of_auction).union(bids.map(of_bid)).key_by("auction").process(Winning())
