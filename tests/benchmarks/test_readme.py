"""README's table is that of the committed results."""

from benchmarks import readme


def test_the_table_is_of_the_committed_results():
    text = readme.README.read_text()
    assert readme.render(text, readme.read_results()["measurements"]) == text, "run python -m benchmarks.readme"


def test_other_results_make_another_table():
    measurements = readme.read_results()["measurements"]
    sizes = ([176, 312], [720, 1280], [1080, 1920])
    for name, fps in (("rfdetr_inductor", 12_345.0), ("rfdetr_fp16, masks", 23_456.0)):
        measurements += [{"name": name, "size_hw": size, "memory_fps": fps} for size in sizes]
    rows = readme.speed_table(measurements).splitlines()
    assert rows[2].startswith("| best of rfdetr and inference-models | 12,345 |")
    assert rows[3].startswith("| the same, dense masks instead of RLE | 23,456 |")
