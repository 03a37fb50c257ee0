"""What the documents list is what there is."""

from pathlib import Path

from addnorm.families import FAMILIES

ROOT = Path(__file__).parents[1]


def test_the_table_of_families_has_a_row_for_each() -> None:
    rows = [
        line for line in (ROOT / "docs" / "families.md").read_text(encoding="utf-8").splitlines() if line[:2] == "| "
    ]
    assert [row.split("|")[1].strip().rstrip("*") for row in rows[1:]] == sorted(FAMILIES)


def test_the_readme_counts_the_families() -> None:
    assert f"{len(FAMILIES)} families" in (ROOT / "README.md").read_text(encoding="utf-8")
