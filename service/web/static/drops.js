// What is dropped on a part of the page: files, and those of folders with one trace per rank.

/** Calls `take` with the files whose names end in one of `endings`; a folder's other files are ignored. */
export function acceptDrops(zone, endings, take) {
  const mark = (is) => (event) => {
    event.preventDefault();
    zone.classList.toggle("over", is);
  };
  zone.ondragover = mark(true);
  zone.ondragleave = mark(false);
  zone.ondrop = async (event) => {
    mark(false)(event);
    const files = await dropped(event.dataTransfer);
    take(files.filter(({ name }) => endings.some((ending) => name.endsWith(ending))));
  };
}

async function dropped(transfer) {
  const entries = [...transfer.items].map((item) => item.webkitGetAsEntry?.());
  if (!entries.length || !entries.every(Boolean)) return [...transfer.files];
  return (await Promise.all(entries.map(filesOf))).flat();
}

async function filesOf(entry) {
  if (entry.isFile) return [await new Promise((resolve, reject) => entry.file(resolve, reject))];
  const inside = await listed(entry.createReader());
  return (await Promise.all(inside.map(filesOf))).flat();
}

/** A reader returns a hundred entries at a time, and none at the end. */
async function listed(reader) {
  const part = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
  return part.length ? [...part, ...(await listed(reader))] : [];
}
