"""Label tables as people and tools keep them."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from dasmil.data.labels import LabelRow, class_names, plain_slide, read_labels
from dasmil.data.scale import read_scales
from dasmil.data.text_table import plain_number, read_rows
from dasmil.errors import DataError, InputError
from dasmil.paper.camelyon16_labels import read_reference


def table(tmp_path: Path, text: str, name: str = "labels.csv") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_own_table(tmp_path: Path) -> None:
    path = table(tmp_path, "slide,label,patient,split\ns1.svs, 1 ,p1,training\ns2,0,p2,Test\n\n")
    assert read_labels(path) == [LabelRow("s1", "1", "p1", "train"), LabelRow("s2", "0", "p2", "test")]


def test_clam_table(tmp_path: Path) -> None:
    path = table(tmp_path, "case_id,slide_id,label\npatient_0,slide_1,tumor_tissue\npatient_0,slide_2,normal_tissue\n")
    assert read_labels(path) == [
        LabelRow("slide_1", "tumor_tissue", "patient_0"),
        LabelRow("slide_2", "normal_tissue", "patient_0"),
    ]


def test_stamp_tables(tmp_path: Path) -> None:
    clini = table(tmp_path, "PATIENT;isMSIH;AGE\nA;MSIH;60\nB;nonMSIH;50\nC;MSIH;40\n", "clini.csv")
    slides = table(tmp_path, "PATIENT,FILENAME\nA,dir/one.h5\nA,two.h5\nB,three.h5\nD,four.h5\n", "slides.csv")
    rows = read_labels(clini, slide_table=slides, label_column="isMSIH")
    assert rows == [
        LabelRow("one", "MSIH", "A"),
        LabelRow("two", "MSIH", "A"),
        LabelRow("three", "nonMSIH", "B"),
        LabelRow("four", None, "D"),  # no clinical row
        LabelRow("(no slide of patient C)", "MSIH", "C"),
    ]


@pytest.mark.parametrize("empty", ["", "nan", "NaN", "NA", "n/a", "NULL"])
def test_what_tools_write_into_empty_cells_is_empty(empty: str, tmp_path: Path) -> None:
    path = table(tmp_path, f"slide,label,patient,split\na,{empty},{empty},{empty}\nb,1,p,train\n")
    assert read_labels(path) == [LabelRow("a", None), LabelRow("b", "1", "p", "train")]
    named = read_labels(path, classes=["NA", "1"])
    assert named[0] == LabelRow("a", "NA" if empty == "NA" else None)


def test_cells_may_hold_separators_of_lines(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_bytes('slide,label,note,more\r\na,1,first\u2028second\x85,\r\nb,0,"two\r\nlines",x\r\n'.encode())
    assert read_labels(path) == [LabelRow("a", "1"), LabelRow("b", "0")]
    assert [row["note"] for _, row in read_rows(path)[1]] == ["first\u2028second", "two\nlines"]


def test_tables_that_cannot_be_understood(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no slide column among case_id, label.*--slide-table"):
        read_labels(table(tmp_path, "case_id,label\na,1\n"))
    with pytest.raises(DataError, match="no label column among slide, isMSIH; name it with --label-column"):
        read_labels(table(tmp_path, "slide,isMSIH\na,1\n"))
    with pytest.raises(InputError, match="no column 'x' for the label"):
        read_labels(table(tmp_path, "slide,label\na,1\n"), label_column="x")
    with pytest.raises(DataError, match="line 3: split is 'foo', expected train, val or test"):
        read_labels(table(tmp_path, "slide,label,split\na,1,val\nb,1,foo\n"))
    with pytest.raises(DataError, match="line 2: 3 values for 2 columns"):
        read_labels(table(tmp_path, "slide,label\na,1,2\n"))
    with pytest.raises(DataError, match="line 2: the slide name is empty"):
        read_labels(table(tmp_path, "slide,label\n,1\n"))
    with pytest.raises(InputError, match=r"of the old kind \(\.xls\): save it as \.xlsx or CSV"):
        read_labels(table(tmp_path, "x", "clini.xls"))
    with pytest.raises(DataError, match=r"cannot be read as an Excel table \(BadZipFile"):
        read_labels(table(tmp_path, "x", "clini.xlsx"))
    clini = table(tmp_path, "PATIENT,label\nA,1\nA,0\n")
    with pytest.raises(DataError, match="patient 'A' is listed twice"):
        read_labels(clini, slide_table=table(tmp_path, "PATIENT,FILENAME\nA,one\n", "s.csv"))


def test_slide_names_keep_dots_that_are_no_file_ending() -> None:
    assert plain_slide("TCGA-01.8f3a.svs") == "TCGA-01.8f3a"
    assert plain_slide("TCGA-01.8f3a") == "TCGA-01.8f3a"
    assert plain_slide(r"folder\slide 1.NDPI") == "slide 1"


def test_class_order() -> None:
    assert class_names(["10", "2", "2"]) == ("2", "10")
    assert class_names(["Tumor", "Normal"]) == ("Normal", "Tumor")
    assert class_names(["a", "b"], ["b", "a"]) == ("b", "a")
    assert class_names(["a", "b"], positive="a") == ("b", "a")
    with pytest.raises(InputError, match="unknown class 'c'"):
        class_names(["a", "b"], positive="c")
    with pytest.raises(InputError, match="--positive is for two classes, but there are 3"):
        class_names(["a", "b", "c"], positive="a")
    with pytest.raises(InputError, match="the table has slides of 'b', 'c, d', expected 'a': correct these labels"):
        class_names(["a", "c, d", "b"], ["a"])
    with pytest.raises(InputError, match="classes were given as 'a', 'a': name each once"):
        class_names(["a"], ["a", "a"])


def test_class_order_does_not_depend_on_the_order_of_a_set() -> None:
    expected = ("0", "001", "01", "01.0", "1", "1.0", "1.00", "1e0", "2")
    assert class_names(expected) == class_names(reversed(expected)) == expected


@pytest.mark.parametrize("labels", [["0", "nan", "1"], ["NaN", "tumour", "normal"], ["0", "-inf"]])
def test_labels_that_are_no_class_are_refused(labels: list[str]) -> None:
    with pytest.raises(DataError, match=r"a label is '(nan|NaN|-inf)', expected a class: leave the cell .* empty"):
        class_names(labels)
    assert class_names(labels, labels) == tuple(labels)


SHEET = """<worksheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"><sheetData>
<row r="1"><c r="A1" t="s"><v>0</v></c><c r="B1" t="s"><v>1</v></c><c r="D1" t="inlineStr"><is><t>PATIENT</t></is></c>
</row><row r="2"><c r="A2" t="s"><v>2</v></c><c r="B2"><v>1</v></c><c r="D2" t="str"><v>p1</v></c></row>
<row r="4"><c r="A4" t="inlineStr"><is><r><t>two</t></r><r><t>.svs</t></r></is></c><c r="B4"><v>0</v></c></row>
</sheetData></worksheet>"""
BOOK = {
    "xl/workbook.xml": """<workbook xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"
xmlns:r="http://schemas.openxmlformats.org/officeDocument/2006/relationships"><sheets>
<sheet name="slides" sheetId="7" r:id="rId3"/><sheet name="other" sheetId="1" r:id="rId1"/></sheets></workbook>""",
    "xl/_rels/workbook.xml.rels": """<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">
<Relationship Id="rId1" Target="worksheets/sheet1.xml"/><Relationship Id="rId3" Target="/xl/worksheets/sheet2.xml"/>
</Relationships>""",
    "xl/sharedStrings.xml": """<sst xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main">
<si><t>FILENAME</t></si><si><t>label</t></si><si><t>slid\u00e9.h5</t></si></sst>""",
    "xl/worksheets/sheet1.xml": "<worksheet/>",
    "xl/worksheets/sheet2.xml": SHEET,
}


def excel(path: Path, **changes: str) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in {**BOOK, **changes}.items():
            archive.writestr(name, text)
    return path


def test_excel_tables(tmp_path: Path) -> None:
    path = excel(tmp_path / "slides.xlsx")
    assert read_labels(path) == [LabelRow("slid\u00e9", "1", "p1"), LabelRow("two", "0", None)]
    bomb = '<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]>' + SHEET
    with pytest.raises(DataError, match="declares entities"):
        read_labels(excel(tmp_path / "bomb.xlsx", **{"xl/worksheets/sheet2.xml": bomb}))
    with pytest.raises(DataError, match="unpacks to more than 200 MB"):
        read_labels(excel(tmp_path / "large.xlsx", more=" " * 200_000_001))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "latin-1"])
def test_encodings_of_spreadsheet_programs(encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_bytes("slide;label\r\nB\u00f6hm 1.svs;m\u00e4\u00dfig\r\n".encode(encoding))
    assert read_labels(path) == [LabelRow("B\u00f6hm 1", "m\u00e4\u00dfig")]


def test_an_encoding_that_cannot_be_told_is_not_guessed(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_bytes("slide,label\n\u0441\u0440\u0435\u0437,1\n".encode("cp1251"))
    with pytest.raises(DataError, match="its encoding cannot be told from its bytes"):
        read_labels(path)


def test_names_of_macos_match_those_of_tables(tmp_path: Path) -> None:
    path = table(tmp_path, "slide,label\nB\u00f6hm.svs,1\n")
    assert read_labels(path)[0].slide == plain_slide("Bo\u0308hm.h5") == "B\u00f6hm"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"slide,label\na\0b,1\n", "holds NUL characters"),
        (b"slide,label" + b",x" * 10_000 + b"\n", "10,002 columns, expected at most 10,000"),
        (b'"slide,label\n' + b"x" * 200_000, "is a quotation mark left open"),
        (b"\n\n", "is empty"),
    ],
)
def test_tables_that_are_none(data: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_bytes(data)
    for read in (read_labels, lambda path: read_scales(table=path), read_reference):
        with pytest.raises(DataError, match=message):
            read(path)


def test_messages_do_not_repeat_a_whole_table(tmp_path: Path) -> None:
    path = table(tmp_path, "slide,label,split\na,1," + "long words " * 5000 + "\n")
    with pytest.raises(DataError) as caught:
        read_labels(path)
    assert len(str(caught.value)) < len(str(path)) + 300


def test_a_slide_has_one_name_whatever_its_file_is_called() -> None:
    """The bag that `extract` makes of a slide finds the label of a table that names the file."""
    from dasmil.wsi.pipeline import slide_name as bag_name
    from dasmil.wsi.reader import SUFFIXES

    files = [*(f"a{suffix}" for suffix in SUFFIXES), "a.ome.tif", "a.OME.TIFF", "a.b.jpeg", "a.ome.btf"]
    for file in files:
        assert plain_slide(file) == plain_slide(bag_name(Path(file))) == plain_slide(f"{bag_name(Path(file))}.h5")
    assert {plain_slide(file) for file in files} == {"a", "a.b"}
    assert plain_slide("a.ome.h5") == "a"
    assert plain_slide("a.ome") == "a.ome", "no file: a name may end so"


def test_a_table_of_more_rows_than_there_are_slides_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("dasmil.data.text_table.MOST_ROWS", 3)
    table = tmp_path / "labels.csv"
    table.write_text("slide,label\n" + "".join(f"s{k},a\n" for k in range(3)))
    assert len(read_labels(table)) == 3
    table.write_text("slide,label\n" + "".join(f"s{k},a\n" for k in range(4)))
    with pytest.raises(DataError, match="more than 3 rows, expected a label table: a line for each slide"):
        read_labels(table)


def test_parquet_table(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    path = tmp_path / "labels.parquet"
    rows = {"slide": ["s1.svs", "s2", "s3"], "label": [1.0, 0.0, None], "patient": ["p1", "Zo\u0065\u0308", None]}
    pandas.DataFrame(rows).to_parquet(path)
    assert read_labels(path) == [LabelRow("s1", "1", "p1"), LabelRow("s2", "0", "Zo\u00eb"), LabelRow("s3", None, None)]
    pandas.DataFrame({"slide": ["a"], "x": [1]}).to_parquet(path)
    with pytest.raises(DataError, match="no label column among slide, x"):
        read_labels(path)
    pandas.DataFrame({"slide": [], "label": []}).to_parquet(path)
    with pytest.raises(DataError, match="has a header and no rows"):
        read_labels(path)
    for content in (b"", b"PAR1", path.read_bytes()[:-20], b"slide,label\n"):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"labels\.parquet cannot be read as a Parquet table"):
            read_labels(path)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("slide,label,Label\na,x,1\nb,y,1\nc,x,2\n", "'label' and 'Label' could both be the column of the label"),
        ("slide,target,label\na,x,1\nb,y,1\nc,x,2\n", "'label' and 'target' could both be the column of the label"),
        ("slide_id,slide,label\na,b,1\nb,c,0\n", "'slide' and 'slide_id' could both be the column of the slide"),
        ("slide,label,patient,case_id\na,1,p,c\nb,0,p,d\n", "'patient' and 'case_id' could both be the column of the"),
    ],
)
def test_two_columns_that_could_be_meant_and_differ_are_refused(text: str, what: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=rf"{what}.*, and they differ \(line [234]\); name one with --\w+-column"):
        read_labels(table(tmp_path, text))


def test_two_columns_that_say_the_same_are_one(tmp_path: Path) -> None:
    text = "slide,filename,label,diagnosis,patient,case_id\na,x/a.svs,0,healthy,1,p\nb,x/b.svs,1,tumour,1,p\n"
    assert read_labels(table(tmp_path, text)) == [LabelRow("a", "0", "1"), LabelRow("b", "1", "1")]
    text = "slide,label,Label\na,x,1\nb,y,1\n"
    assert [row.label for row in read_labels(table(tmp_path, text), label_column="Label")] == ["1", "1"]


@pytest.mark.parametrize("cell", ["#N/A", "#REF!", "#DIV/0!", "#name?"])
@pytest.mark.parametrize("column", ["slide", "label", "patient", "split"])
def test_errors_of_spreadsheets_are_no_values(cell: str, column: str, tmp_path: Path) -> None:
    rows = {"slide": "b", "label": "1", "patient": "p", "split": "test", column: cell}
    path = table(tmp_path, "slide,label,patient,split,note\na,0,q,train,#N/A\n" + ",".join(rows.values()) + ",\n")
    with pytest.raises(DataError, match=f"line 3: '{column}' is .*, an error of a spreadsheet program; correct"):
        read_labels(path)


def test_characters_that_nobody_sees_make_no_class(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_text(
        "slide,label,patient\na,tum\u00adour\u200b,p1\nb,tumour,\u2060p1\nc,tumour\u00a0,p1\u200b \n", "utf-8"
    )
    assert [(row.label, row.patient) for row in read_labels(path)] == [("tumour", "p1")] * 3


STYLES = """<styleSheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"><numFmts count="2">
<numFmt numFmtId="164" formatCode="yyyy\\-mm\\-dd"/><numFmt numFmtId="165" formatCode='0.0 "days"'/></numFmts>
<cellXfs count="4"><xf numFmtId="0"/><xf numFmtId="14"/><xf numFmtId="164"/><xf numFmtId="165"/></cellXfs>
</styleSheet>"""


def styled(path: Path, label: str) -> Path:
    cells = '<row><c t="inlineStr"><is><t>slide</t></is></c><c t="inlineStr"><is><t>label</t></is></c></row>'
    cells += f'<row><c t="inlineStr"><is><t>a</t></is></c>{label}</row>'
    sheet = f'<worksheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main">{cells}</worksheet>'
    return excel(path, **{"xl/worksheets/sheet2.xml": sheet, "xl/styles.xml": STYLES})


@pytest.mark.parametrize(
    ("cell", "value"),
    [('<c s="1"><v>45352</v></c>', "2024-03-01"), ('<c s="2"><v>45352.5</v></c>', "2024-03-01 12:00:00"),
     ('<c s="3"><v>45352</v></c>', "45352"), ('<c s="0"><v>45352</v></c>', "45352"), ("<c><v>3</v></c>", "3")],
)  # fmt: skip
def test_dates_of_excel_are_dates_and_no_class(cell: str, value: str, tmp_path: Path) -> None:
    path = styled(tmp_path / "t.xlsx", cell)
    assert read_rows(path)[1][0][1]["label"] == value
    if "-" in value:
        with pytest.raises(DataError, match=r"line 2: the label is the date 2024-03-01.*such as MARCH1"):
            read_labels(path)
    else:
        assert read_labels(path)[0].label == value


def test_excel_errors_are_no_class(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="line 2: 'label' is #N/A, an error of a spreadsheet program"):
        read_labels(styled(tmp_path / "t.xlsx", '<c t="e"><v>#N/A</v></c>'))


@pytest.mark.parametrize("text", ["1_000", "\u0661\u0662", "\uff11", "0x10", "1,5", "12 days", "", "1e", "--1"])
def test_only_plain_numbers_are_numbers(text: str, tmp_path: Path) -> None:
    assert plain_number(text) is None
    if text:
        path = tmp_path / "scale.csv"
        path.write_text(f'slide,mpp\na,"{text}"\n', "utf-8")
        with pytest.raises(DataError, match=r"expected a number such as 0\.25"):
            read_scales(table=path)


@pytest.mark.parametrize("text", ["1", "-1.5", " .5", "5.", "1e-3", "+2E5", "007"])
def test_plain_numbers(text: str) -> None:
    assert plain_number(text) == float(text)
