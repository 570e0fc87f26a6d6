"""Work that runs in several threads at once."""

import threading

_PATIENCE_S = 120


def run_at_once(work, arguments):
    """Call `work` with each argument in a thread of its own; all must end in time, and raise nothing."""
    wrong = []

    def run(argument):
        try:
            work(argument)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=run, args=[argument]) for argument in arguments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_PATIENCE_S)
        assert not thread.is_alive()
    assert wrong == []
