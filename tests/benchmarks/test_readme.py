"""README's table is that of the committed results."""

from benchmarks import readme


def test_the_table_is_of_the_committed_results():
    text = readme.README.read_text()
    assert readme.render(text, readme.read_results()["measurements"]) == text, "run python -m benchmarks.readme"


def test_other_results_make_another_table():
    text = readme.README.read_text()
    measurements = readme.read_results()["measurements"]
    measurements.append({"name": "rfdetr", "size_hw": [176, 312], "memory_fps": 12_345.0})  # later ones replace it
    found = readme.render(text, measurements)
    assert "| best of rfdetr and inference-models | 12,345 |" in found
