"""Messages between the process that listens and those that serve."""

import asyncio
from types import SimpleNamespace

from maskjet.devices import Place
from maskjet.serve.handover import Channel, Taker
from tests.serve.client import run


@run
async def test_a_process_that_ends_with_its_failure_unread_is_not_waited_for():
    mine, its = Channel.pair()
    taker = Taker(Place(0, "cpu", {}), SimpleNamespace(returncode=1), Channel(mine))

    def receive(message, _):
        taker.failure = message[1], message[2]
        taker.dismiss(60)

    other = Channel(its)
    taker.channel.start(receive)
    other.send("failed", "DeviceError", "The device failed.")
    other.close()
    timers = asyncio.get_running_loop()._scheduled
    assert taker.close() == []
    assert taker.end == "failed: The device failed."
    assert all(timer.cancelled() for timer in timers if timer._callback == taker._give_up)
