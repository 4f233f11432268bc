// Sends, receives and settles with the types that openapi-typescript makes of the description.
//
// usage: node use.js URL

import createClient from 'openapi-fetch';
import type { components, paths } from './schema.js';

type Answer = components['schemas']['Answer'];

const client = createClient<paths>({ baseUrl: process.argv[2] ?? '' });
const path = { queue: 'typescript' };

const demand: (condition: unknown, what: unknown) => asserts condition = (condition, what) => {
  if (!condition) throw new Error(typeof what === 'string' ? what : JSON.stringify(what));
};

// The body of the request is the message, as it is.
const send = async (key: string, body: string): Promise<Answer> => {
  const { data, error } = await client.POST('/v1/queues/{queue}/messages', {
    params: { path, header: { 'Idempotency-Key': key, 'hapax-ttl-ms': 600_000 } },
    headers: { 'content-type': 'text/plain' },
    body,
    bodySerializer: (body) => body,
  });
  demand(data, error);
  return data;
};

const created = await client.PUT('/v1/queues/{queue}', {
  params: { path },
  body: { on_lost: 'park', max_attempts: 2, retention_ms: null },
});
demand(created.response.status === 201 && created.data, created.error);
demand(created.data.config.lease_ms === 30_000, created.data);

const first = await send('order-42', 'three lemons');
demand(first.answer === 'accepted', first);
const batch = await client.POST('/v1/queues/{queue}/batch', {
  params: { path },
  body: { messages: [{ key: 'order-42', body: 'four' }, { key: 'order-43', body_base64: '/w==' }] },
});
const [conflict, accepted] = batch.data?.answers ?? [];
demand(conflict?.answer === 'error' && conflict.code === 'conflict', batch);
demand(accepted?.answer === 'accepted', batch);

const received = await client.POST('/v1/queues/{queue}/receive', {
  params: { path },
  body: { max: 10, wait_ms: 20_000, worker: 'typescript' },
});
const messages = received.data?.messages ?? [];
demand(messages.length === 2, received);
const lemons = messages.find((message) => message.key === 'order-42');
const other = messages.find((message) => message.key === 'order-43');
demand(lemons?.body === 'three lemons' && lemons.content_type === 'text/plain', messages);
demand(other?.body_base64 === '/w==' && other.body === undefined, messages);
demand(lemons.tenant === 'default' && lemons.queue === 'typescript', lemons);
demand(lemons.lease_ms === 30_000 && BigInt(lemons.fence) > 0n, lemons);

const settled = await client.POST('/v1/queues/{queue}/settle', {
  params: { path },
  body: {
    items: [
      { do: 'save', lease: lemons.lease, name: 'charged', body: 'ch_1' },
      { do: 'extend', lease: lemons.lease, lease_ms: 60_000 },
      { do: 'done', lease: lemons.lease, result: { body: 'THREE LEMONS' } },
      { do: 'fail', lease: other.lease, error: 'rotten', dead: true },
      { do: 'release', lease: lemons.lease },
    ],
  },
});
const kinds = settled.data?.answers.map((answer) => answer.answer);
demand(kinds?.join() === 'ok,ok,ok,ok,lease_lost', settled);
const lost = settled.data?.answers[4];
demand(lost?.answer === 'lease_lost' && lost.result?.body === 'THREE LEMONS', settled);

const again = await send('order-42', 'three lemons');
demand(again.answer === 'done' && again.result?.body === 'THREE LEMONS', again);
const key = await client.GET('/v1/queues/{queue}/keys/{key}', {
  params: { path: { ...path, key: 'order-43' }, query: { wait_ms: 0 } },
});
demand(key.data?.state === 'dead' && key.data.error === 'rotten', key);
const redriven = await client.POST('/v1/queues/{queue}/redrive', {
  params: { path },
  body: { keys: ['order-43'] },
});
demand(redriven.data?.moved === 1 && redriven.data.done, redriven);
const unknown = await client.GET('/v1/queues/{queue}', { params: { path: { queue: 'nobody' } } });
demand(unknown.error?.code === 'no_such_queue' && !unknown.error.retryable, unknown);
const gone = await client.DELETE('/v1/queues/{queue}', { params: { path } });
demand(gone.response.status === 204, gone);
console.log('the TypeScript client sends, receives and settles');
