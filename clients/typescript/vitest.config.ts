import { fileURLToPath } from "node:url";
import { defineConfig } from "vitest/config";

const source = (path: string): string => fileURLToPath(new URL(`src/${path}`, import.meta.url));

export default defineConfig({
  resolve: {
    alias: [
      { find: /^hapax$/, replacement: source("index.ts") },
      { find: "hapax/postgres", replacement: source("postgres/index.ts") },
      { find: "hapax/http", replacement: source("http/index.ts") },
      { find: "hapax/testing", replacement: source("testing.ts") },
      { find: "hapax/vitest", replacement: source("vitest.ts") },
    ],
  },
  test: {
    include: ["tests/**/*.test.ts"],
    testTimeout: 600_000,
    hookTimeout: 300_000,
    // Brokers and databases are processes of their own: two files at once keep a small machine busy.
    maxWorkers: 2,
  },
});
