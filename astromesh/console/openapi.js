// @ts-check
// The page /docs: Swagger UI over this server's own description. The key is that of the console, kept in the tab.
const KEY = "astromesh-key";
const page = /** @type {HTMLElement} */ (document.getElementById("openapi"));
const form = /** @type {HTMLFormElement} */ (document.getElementById("key"));
const { SwaggerUIBundle } = /** @type {any} */ (window);

/** @param {any} request */
function withKey(request) {
  const key = sessionStorage.getItem(KEY);
  if (key && !request.headers.Authorization) request.headers.Authorization = `Bearer ${key}`;
  return request;
}

/** What is wrong with the key that was sent; empty: none was. @param {Response} answer */
async function refusal(answer) {
  if (!sessionStorage.getItem(KEY)) return "";
  const { detail } = await answer.json().catch(() => ({ detail: "" }));
  return `The server refuses this key. ${detail ?? ""}`.trim();
}

async function show() {
  const { headers } = withKey({ headers: {} });
  const answer = await fetch("openapi.json", { headers });
  form.hidden = answer.status !== 401 && answer.status !== 403;
  if (!answer.ok) {
    page.textContent = form.hidden ? `The server answered ${answer.status}.` : await refusal(answer);
    return;
  }
  page.textContent = "";
  SwaggerUIBundle({
    spec: await answer.json(), domNode: page, requestInterceptor: withKey, deepLinking: true, docExpansion: "list",
    tryItOutEnabled: true, validatorUrl: null,
  });
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(KEY, /** @type {HTMLInputElement} */ (form.querySelector("input")).value.trim());
  show();
});
if (SwaggerUIBundle) show();
else page.textContent = "The libraries of this page are missing. In a checkout, run: python scripts/console_libraries.py";
