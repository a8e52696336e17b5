// The server's answers; an error is one line.

const KEY = "meshplan-token";

export function keepToken() {
  const here = new URL(location.href);
  const token = here.searchParams.get("token");
  if (!token) return;
  localStorage.setItem(KEY, token);
  history.replaceState(null, "", here.pathname + here.hash);
}

export async function asked(path, question) {
  const headers = { "x-meshplan-token": localStorage.getItem(KEY) || "" };
  const given = question && { method: "POST", body: JSON.stringify(question) };
  if (given) headers["content-type"] = "application/json";
  let answer;
  try {
    answer = await fetch(path, { ...given, headers });
  } catch {
    throw new Error("the server does not answer: is `meshplan ui` still running?");
  }
  const document = await answer.json().catch(() => ({ error: `the server failed (${answer.status})` }));
  if (document.error) throw new Error(document.error);
  return document;
}
