// A caller in TypeScript, with the types that openapi-typescript made: it creates a bot, and reads an error.
import createClient from "openapi-fetch";

import type { components, paths } from "./schema.js";

declare const process: { argv: string[] };

const client = createClient<paths>({
  baseUrl: process.argv[2] ?? "",
  headers: { Authorization: `Bearer ${process.argv[3] ?? ""}` },
});

const created = await client.POST("/api/v1/bots", {
  params: { header: { "Idempotency-Key": "typescript" } },
  body: { meetingUrl: "https://meet.google.com/abc-defg-hij", metadata: { team: "sales" } },
});
const bot: components["schemas"]["Bot"] | undefined = created.data?.bot;

const found = await client.GET("/api/v1/bots/{botId}", { params: { path: { botId: bot?.id ?? 0 } } });
const status: components["schemas"]["BotStatus"] | undefined = found.data?.status;

const refused = await client.POST("/api/v1/bots", { body: { meetingUrl: "https://example.com/" } });
const problem: components["schemas"]["Problem"] | undefined = refused.error;

console.log(
  JSON.stringify({
    meetingUrl: bot?.meetingUrl,
    known: status !== undefined,
    code: problem?.code,
    pointer: problem?.errors?.[0]?.pointer,
  }),
);
