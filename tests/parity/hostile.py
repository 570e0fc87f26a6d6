"""Files as somebody else may hand them over: damaged, edited, or made to mislead."""


def flip(random, data, count=1):
    """With some bits turned over."""
    changed = bytearray(data)
    for position in random.integers(0, len(data), count):
        changed[position] ^= 1 << int(random.integers(8))
    return bytes(changed)


def replaced(random, value, strange):
    """A JSON value with one place in it replaced by something strange, or left out, or doubled."""
    if isinstance(value, dict) and value and random.random() < 0.9:
        key = list(value)[int(random.integers(len(value)))]
        action = random.random()
        if action < 0.1:
            return {name: each for name, each in value.items() if name != key}
        if action < 0.15:
            return {**value, strange[int(random.integers(len(strange)))].__repr__()[:20]: value[key]}
        return {**value, key: replaced(random, value[key], strange)}
    if isinstance(value, list) and value and random.random() < 0.9:
        position = int(random.integers(len(value)))
        if random.random() < 0.1:
            return [*value[:position], *value[position + 1 :]]
        if random.random() < 0.1:
            return [*value, value[position]]
        return [*value[:position], replaced(random, value[position], strange), *value[position + 1 :]]
    return strange[int(random.integers(len(strange)))]


def deep(levels):
    """JSON of lists within lists."""
    value = []
    for _ in range(levels):
        value = [value]
    return value


STRANGE = [
    *(None, True, False, 0, 1, -1, 2, 0.5, -0.0, 1e300, -1e300, 2**31, 2**63, -(2**63), 10**30, 10**400),
    *(float("nan"), float("inf"), "", "a", "0", "\ud800", "\x00", "\x1b[2J", "<script>alert(1)</script>", "../../x"),
    *([], {}, [[]], [0, 0], [1, 2, 3, 4], [10**6, 10**6], {"name": "x"}, {"size": [1, 1], "counts": "1"}, deep(20)),
]
"""Values that no field expects."""
