"""README's table is that of the committed results."""

from benchmarks import readme


def test_the_table_is_of_the_committed_results():
    text = readme.README.read_text()
    assert readme.render(text, readme.read_results()) == text, "run python -m benchmarks.readme"


def test_other_results_make_another_table():
    results = readme.read_results()
    for each in results["video"]["measurements"]:
        if (each["name"], each["size_hw"]) == ("rfdetr_fp16, masks", [720, 1280]):
            each["memory_fps"] = 12_345.0
    one, four = readme.speed_table(results).splitlines()[2:4]
    assert one.split(" | ")[3] == "12,345 (0×)"
    assert four.split(" | ")[3] == "12,345 (0×)"
