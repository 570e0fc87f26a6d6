// Talking to the server: requests, the token, and its errors as sentences.

const TOKEN_KEY = "maskjet.token";

/** An error whose message is a sentence for the reader; status is HTTP's, or 0. */
export class Problem extends Error {
  constructor(sentence, status = 0) {
    super(/[.!?]$/.test(sentence) ? sentence : `${sentence}.`);
    this.status = status;
  }
}

export function rememberToken(token) {
  sessionStorage.setItem(TOKEN_KEY, token);
}

export const hasToken = () => Boolean(sessionStorage.getItem(TOKEN_KEY));

/** Send a request; the path is relative to the page's, so that the service may live below a prefix. */
export async function request(path, { params = {}, headers = {}, ...options } = {}) {
  const url = new URL(path, document.baseURI);
  for (const [name, value] of Object.entries(params)) url.searchParams.set(name, value);
  const token = sessionStorage.getItem(TOKEN_KEY);
  const authorization = token ? { Authorization: `Bearer ${token}` } : {};
  let response;
  try {
    response = await fetch(url, { ...options, headers: { ...headers, ...authorization } });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem("The server can't be reached. Is maskjet serve still running?");
  }
  if (!response.ok) throw await readProblem(response);
  return response;
}

async function readProblem(response) {
  const body = await response.json().catch(() => null);
  const sentence = typeof body?.detail === "string" ? body.detail : body?.title;
  return new Problem(sentence || `The server answered with the status ${response.status}.`, response.status);
}

/** Open a WebSocket; browsers send no headers with it, so that the token travels as a subprotocol. */
export function openSocket(path, params) {
  const url = new URL(path, document.baseURI);
  url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
  for (const [name, value] of Object.entries(params)) url.searchParams.set(name, value);
  const token = sessionStorage.getItem(TOKEN_KEY);
  return new WebSocket(url, token ? ["maskjet", `bearer.${toBase64Url(token)}`] : ["maskjet"]);
}

function toBase64Url(text) {
  const bytes = String.fromCharCode(...new TextEncoder().encode(text));
  return btoa(bytes).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
}

/** The total of a Server-Timing header in milliseconds; the sum of its parts if it names no total; null without any. */
export function serverMilliseconds(response) {
  const parts = (response.headers.get("Server-Timing") ?? "").split(",").map((part) => ({
    name: part.split(";")[0].trim(), dur: parseFloat(part.match(/;\s*dur="?([\d.]+)/)?.[1]),
  })).filter(({ dur }) => dur >= 0);
  if (!parts.length) return null;
  return parts.find(({ name }) => name === "total")?.dur ?? parts.reduce((sum, { dur }) => sum + dur, 0);
}
