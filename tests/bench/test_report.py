"""The report: what the tables say, on every surface."""

import xml.etree.ElementTree as ElementTree

from addnorm.bench.machine import machine, slug
from addnorm.bench.picture import picture
from addnorm.bench.report import details, html, left_out, limits, markdown, scaling, summary
from tests.bench.made import RESULT


def test_the_summary_has_ours_beside_the_fastest_other_at_the_same_precision() -> None:
    first, second = summary(RESULT).rows
    assert first == {
        "workload": "mixed",
        "precision": "float32",
        "ours": "10 /s",
        "fastest other": "Peer | one",
        "its": "7 /s",
        "ours ×": "1.50 (1.10–2.00)",
        "base ×": "3.00",
        "ceiling": "20%",
        "agreement": "1e-07",
    }
    assert (second["fastest other"], second["its"], second["ours ×"]) == ("–", "–", "–")
    assert (second["base ×"], second["ceiling"], second["agreement"]) == ("8.00", "10%", "0.99500")


def test_details_are_by_precision_and_speed_with_the_yardstick_once() -> None:
    rows = details(RESULT, "mixed").rows
    assert [(row["system"], row["precision"]) for row in rows] == [
        ("addnorm", "float32"),
        ("Peer | one", "float32"),
        ("transformers sdpa", "float32"),
        ("addnorm", "int8"),
    ]
    assert [row["ours ×"] for row in rows] == [
        "1.00 (1.00–1.00)",
        "1.50 (1.10–2.00)",
        "3.00 (2.00–4.00)",
        "1.00 (1.00–1.00)",
    ]
    (alone,) = details(RESULT, "single 8").rows
    assert (alone["speed"], alone["ours ×"], alone["differs"]) == ("75.00 ms", "–", "–")


def test_memory_ceiling_and_what_was_left_out() -> None:
    (row,) = scaling(RESULT).rows
    assert (row["ms a text"], row["MB before"], row["MB more, at most"], row["MB in all"]) == (
        "2.00",
        "300",
        "50",
        "350",
    )
    assert [row["rate"] for row in limits(RESULT).rows] == ["100 GFLOP/s", "400 GFLOP/s", "10 GB/s"]
    assert [row["why"] for row in left_out(RESULT).rows] == ["nncf is not installed", "the model reads 100"]


def test_markdown_has_every_table_and_cells_cannot_break_it() -> None:
    text = markdown([RESULT], "picture.svg", "make bench")
    assert "![Ours and the fastest of the others](picture.svg)" in text
    assert "Peer \\| one" in text
    assert "Made by `make bench`." in text
    assert "nncf is not installed" in text
    tables = [block.splitlines() for block in text.split("\n\n") if block.startswith("|")]
    for lines in tables:
        assert len({line.replace("\\|", "").count("|") for line in lines}) == 1
    assert len(tables) == 6


def test_the_picture_is_an_svg_with_a_bar_for_each() -> None:
    root = ElementTree.fromstring(picture([RESULT, RESULT]))
    bars = list(root.iter("{http://www.w3.org/2000/svg}rect"))[1:]
    assert len(bars) == 2 * 3  # ours and the other in float32, ours in int8
    texts = [node.text for node in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"3.00×", "2.00×", "8.00×"} <= set(texts)
    assert "Peer | one float32" in texts
    assert float(bars[2].get("width", 0)) > float(bars[0].get("width", 0))


def test_the_page_holds_the_picture_and_the_tables() -> None:
    page = html([RESULT], "addnorm bench --html /home/someone/<file>")
    assert page.count("<svg") == 1
    assert page.count("<table>") == 6
    assert "addnorm bench --html …/&lt;file&gt;" in page


def test_a_machine_is_named_for_files_and_described_without_places() -> None:
    assert slug(RESULT.machine) == "some-9-2-cores"
    found = machine(("torch", "a-package-that-is-not-there"))
    assert list(found["versions"]) == ["torch"]
    assert found["cores"] >= 1
    assert found["processor"]
