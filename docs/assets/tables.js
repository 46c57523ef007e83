// Tables of the results: a click on a head sorts the rows, a field above long tables filters them.
document.addEventListener("DOMContentLoaded", () => {
  if (!location.pathname.includes("/results/")) return;
  document.querySelectorAll(".md-typeset table:not([class])").forEach((table) => {
    const body = table.tBodies[0];
    const heads = [...(table.tHead ? table.tHead.rows[0].cells : [])];
    if (!body || body.rows.length < 3) return;
    const value = (row, column) => {
      const text = row.cells[column] ? row.cells[column].textContent.trim() : "";
      const found = text.replace(/,(?=\d{3})/g, "").match(/^[^\d.-]{0,2}(-?(?:\d+\.?\d*|\.\d+))/);
      return found ? Number(found[1]) : text.toLowerCase();
    };
    heads.forEach((head, column) => {
      head.classList.add("sortable");
      head.tabIndex = 0;
      const sort = () => {
        const way = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", way === 1 ? "ascending" : "descending");
        const rows = [...body.rows].map((row, place) => ({ row, place, key: value(row, column) }));
        rows.sort((a, b) => {
          if (typeof a.key !== typeof b.key) return typeof a.key === "number" ? -1 : 1;  // words after numbers
          return (a.key < b.key ? -way : a.key > b.key ? way : a.place - b.place);
        });
        rows.forEach(({ row }) => body.append(row));
      };
      head.addEventListener("click", sort);
      head.addEventListener("keydown", (event) => { if (event.key === "Enter") sort(); });
    });
    if (body.rows.length < 12) return;
    const field = document.createElement("input");
    field.className = "table-filter";
    field.placeholder = "filter rows";
    field.setAttribute("aria-label", "filter the rows of the table below");
    field.addEventListener("input", () => {
      const wanted = field.value.toLowerCase();
      [...body.rows].forEach((row) => { row.hidden = !row.textContent.toLowerCase().includes(wanted); });
    });
    table.before(field);
  });
});
