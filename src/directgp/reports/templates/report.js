"use strict";

for (const table of document.querySelectorAll("table.scores")) {
  const headers = [...table.tHead.rows[0].cells];
  const body = table.tBodies[0];
  const value = (row, column) => {
    const text = row.cells[column].dataset.value;
    return column === 0 ? Number(row.dataset.order) : text === "" ? Infinity : Number(text);
  };
  headers.forEach((header, column) => {
    header.querySelector("button").addEventListener("click", () => {
      const falling = header.getAttribute("aria-sort") === "ascending";
      for (const other of headers) other.setAttribute("aria-sort", "none");
      header.setAttribute("aria-sort", falling ? "descending" : "ascending");
      const sign = falling ? -1 : 1;
      const compare = (a, b) => {
        const [x, y] = [value(a, column), value(b, column)];
        // Rows without a value come last in both directions.
        if (x === y) return Number(a.dataset.order) - Number(b.dataset.order);
        if (x === Infinity || y === Infinity) return x === Infinity ? 1 : -1;
        return sign * (x - y);
      };
      body.append(...[...body.rows].sort(compare));
    });
  });
}

let closed = [];
window.addEventListener("beforeprint", () => {
  closed = [...document.querySelectorAll("details:not([open])")];
  for (const each of closed) each.open = true;
});
window.addEventListener("afterprint", () => {
  for (const each of closed) each.open = false;
});
