// A field for files that are dropped or chosen. Each file is sent in its own request, because a
// message of the page would hold the whole file, in base64.

function send(address, file, progress) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("PUT", `${address}?name=${encodeURIComponent(file.name)}`);
    request.upload.onprogress = (event) => progress(event.loaded);
    request.onerror = () => reject(new Error("the connection was lost; drop it again"));
    request.onload = () => {
      if (request.status === 204) resolve();
      else reject(new Error(request.responseText || `the server answered ${request.status}`));
    };
    request.send(file);
  });
}

export function render({ model }) {
  const field = document.createElement("label");
  const input = document.createElement("input");
  const bar = document.createElement("progress");
  field.className = "zone";
  field.append(model.label, input, bar);
  Object.assign(input, { type: "file", accept: model.accept, multiple: model.multiple });
  bar.hidden = true;
  bar.setAttribute("aria-label", "Upload");
  let drop = Date.now();  // the time, so that a field that is drawn again uses no number twice

  async function upload(files) {
    const thisDrop = ++drop;
    const totalBytes = files.reduce((sum, file) => sum + file.size, 0);
    let sentBytes = 0;
    if (totalBytes > model.max_bytes) {
      const limit = Math.floor(model.max_bytes / 2 ** 20);
      const error = `expected at most ${limit} MiB; put larger files into the folder, and choose them there`;
      model.send_msg({ error });
      return;
    }
    Object.assign(bar, { hidden: false, max: Math.max(totalBytes, 1), value: 0 });
    try {
      for (const file of files) {
        const show = (loaded) => { if (thisDrop === drop) bar.value = sentBytes + loaded; };
        await send(`${model.address}/${thisDrop}`, file, show);
        sentBytes += file.size;
      }
      if (thisDrop === drop) model.send_msg({ drop: String(thisDrop) });
    } catch (error) {
      if (thisDrop === drop) model.send_msg({ error: error.message });
    } finally {
      if (thisDrop === drop) bar.hidden = true;
      input.value = "";  // so that the same file can be chosen again
    }
  }

  input.addEventListener("change", () => { if (input.files.length) upload([...input.files]); });
  field.addEventListener("dragover", (event) => {
    event.preventDefault();
    field.classList.add("over");
  });
  field.addEventListener("dragleave", () => field.classList.remove("over"));
  field.addEventListener("drop", (event) => {
    event.preventDefault();
    field.classList.remove("over");
    const files = [...event.dataTransfer.files];
    if (files.length) upload(model.multiple ? files : files.slice(0, 1));
  });
  return field;
}
