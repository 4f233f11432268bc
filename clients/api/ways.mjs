// Sends one operation in six ways, and expects one message. What differs between the ways (the
// content type, the form of the body, the protocol) must not make them different operations.
//
// usage: node ways.mjs URL HAPAX

import { execFileSync } from 'node:child_process';
import { connect } from 'node:http2';

const [url, hapax] = process.argv.slice(2);
const queue = 'ways';
const path = `${url}/v1/queues/${queue}`;

// A command's output; it is read whatever its exit code is.
const run = (command, args, input) => {
  try {
    return execFileSync(command, args, { input, stdio: ['pipe', 'pipe', 'pipe'] }).toString();
  } catch (error) {
    return error.stdout?.toString() || error.stderr?.toString() || String(error);
  }
};

const viaFetch = async (key, body) => {
  const headers = { 'idempotency-key': key };
  return (await fetch(`${path}/messages`, { method: 'POST', headers, body })).json();
};

const isText = (bytes) => Buffer.from(bytes.toString()).equals(bytes);

// ---- gRPC: one unary call of the service's own protobuf, written by hand.

const varint = (number) => {
  const bytes = [];
  for (; number > 127; number >>>= 7) bytes.push((number & 127) | 128);
  return Buffer.from([...bytes, number]);
};
const field = (tag, bytes) =>
  Buffer.concat([varint((tag << 3) | 2), varint(bytes.length), Buffer.from(bytes)]);

// The fields of a message: numbers, and bytes.
const fields = (bytes) => {
  const found = new Map();
  let at = 0;
  const number = () => {
    let value = 0n;
    for (let shift = 0n; ; shift += 7n) {
      const byte = bytes[at++];
      value |= BigInt(byte & 127) << shift;
      if (byte < 128) return Number(value);
    }
  };
  while (at < bytes.length) {
    const tag = number();
    if ((tag & 7) === 0) found.set(tag >> 3, number());
    else {
      const length = number();
      found.set(tag >> 3, bytes.subarray(at, (at += length)));
    }
  }
  return found;
};

const viaGrpc = (key, body) =>
  new Promise((resolve, reject) => {
    const session = connect(url);
    session.on('error', reject);
    const call = session.request({
      ':method': 'POST',
      ':path': '/hapax.v1.Hapax/SendBatch',
      'content-type': 'application/grpc',
      te: 'trailers',
    });
    const message = Buffer.concat([field(2, Buffer.from(key)), field(3, body)]);
    const frame = Buffer.concat([field(1, Buffer.from(queue)), field(2, message)]);
    const head = Buffer.alloc(5);
    head.writeUInt32BE(frame.length, 1);
    const parts = [];
    let status = '';
    call.on('data', (part) => parts.push(part));
    call.on('trailers', (trailers) => (status = trailers['grpc-message'] ?? ''));
    call.on('error', reject);
    call.on('end', () => {
      session.close();
      const reply = fields(Buffer.concat(parts).subarray(5));
      if (!reply.has(1)) return reject(new Error(`gRPC: ${status}`));
      const answer = fields(reply.get(1));
      const kinds = ['unspecified', 'accepted', 'in_flight', 'done', 'dead', 'parked', 'error'];
      const id = answer.get(3)?.toString('hex') ?? '';
      resolve({
        answer: kinds[answer.get(2) ?? 0],
        id: id.replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, '$1-$2-$3-$4-$5'),
        problem: answer.get(7)?.toString(),
      });
    });
    call.end(Buffer.concat([head, frame]));
  });

// ---- The ways

const ways = {
  curl: (key, body) => {
    const args = ['-s', `${path}/messages`, '-H', `Idempotency-Key: ${key}`, '--data-binary', '@-'];
    return JSON.parse(run('curl', args, body));
  },
  'fetch of a string': (key, body) => viaFetch(key, isText(body) ? body.toString() : body),
  'fetch of bytes': (key, body) => viaFetch(key, new Uint8Array(body)),
  batch: async (key, body) => {
    const sent = isText(body)
      ? { key, body: body.toString() }
      : { key, body_base64: body.toString('base64') };
    const response = await fetch(`${path}/batch`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ messages: [sent] }),
    });
    return (await response.json()).answers[0];
  },
  gRPC: viaGrpc,
  'command line': (key, body) => {
    const args = ['send', queue, '-', '--key', key, '--server', url, '-o', 'json'];
    return JSON.parse(run(hapax, args, body));
  },
};

const bodies = {
  text: Buffer.from('drei Zitronen, größer'),
  json: Buffer.from('{"amount": 5}'),
  bytes: Buffer.from([0xff, 0x00, 0x80, 0x0a]),
  empty: Buffer.alloc(0),
};

const created = await fetch(path, { method: 'PUT' });
if (created.status !== 201) throw new Error(`the queue: ${await created.text()}`);
let sent = 0;
let messages = 0;
for (const [kind, body] of Object.entries(bodies)) {
  // Text comes first in every way, the other bodies in one each.
  const firsts = kind === 'text' ? Object.keys(ways) : [Object.keys(ways)[messages % 6]];
  for (const first of firsts) {
    messages += 1;
    const key = `${kind}-${first.replaceAll(' ', '-')}`;
    const others = Object.keys(ways).filter((way) => way !== first);
    let id;
    for (const way of [first, ...others]) {
      const told = await ways[way](key, body);
      const expected = way === first ? 'accepted' : 'in_flight';
      id ??= told.id;
      if (told.answer !== expected || told.id !== id || !id) {
        const what = `${kind}, first by ${first}, then by ${way}`;
        throw new Error(`${what}: expected ${expected} ${id}, got ${JSON.stringify(told)}`);
      }
      sent += 1;
    }
    const shown = await (await fetch(`${path}/keys/${key}`)).json();
    if (shown.duplicates !== others.length) throw new Error(`${key}: ${JSON.stringify(shown)}`);
  }
}
const { stats } = await (await fetch(path)).json();
if (stats.ready !== messages || stats.sent_total !== messages) {
  throw new Error(`expected ${messages} messages: ${JSON.stringify(stats)}`);
}
console.log(`${sent} sends in ${Object.keys(ways).length} ways: ${messages} messages, no conflict`);
