// Logs in with every mechanism that kafkajs has, and prints one line of JSON per check: its sentence, and an error or null.
"use strict";

const fs = require("fs");
const { Kafka, logLevel } = require("kafkajs");

const CHECK_TIMEOUT_MS = 20000;
const known = JSON.parse(process.argv[2]);
const tls = { ca: [fs.readFileSync(known.Authority)], servername: "localhost" };
const quick = {
  retry: { retries: 1 },
  connectionTimeout: 5000,
  reauthenticationThreshold: 1000, // before the end of a session; 10 seconds are longer than these last
  logLevel: logLevel.NOTHING,
};

async function check(sentence, work) {
  let error = null;
  let timer;
  const late = new Promise((_, fail) => {
    timer = setTimeout(() => fail(new Error("timeout")), CHECK_TIMEOUT_MS);
  });
  try {
    await Promise.race([work(), late]);
  } catch (raised) {
    error = String(raised);
  }
  clearTimeout(timer);
  console.log(JSON.stringify({ check: sentence, error }));
}

// Produces and consumes for longer than a session lasts, so that the client logs in again.
async function exchange(topic, kafka) {
  const admin = kafka.admin();
  await admin.connect();
  await admin.createTopics({ topics: [{ topic, numPartitions: 1 }] });
  await admin.disconnect();
  const producer = kafka.producer();
  const consumer = kafka.consumer({ groupId: topic, maxWaitTimeInMs: 100 });
  await producer.connect();
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  const got = [];
  await consumer.run({ eachMessage: async ({ message }) => got.push(message.value.toString()) });
  const sent = [];
  const ends = Date.now() + known.SessionMs * 1.5;
  while (Date.now() < ends) {
    sent.push(String(sent.length));
    await producer.send({ topic, messages: [{ value: sent[sent.length - 1] }] });
    await new Promise((done) => setTimeout(done, 100));
  }
  while (got.length < sent.length) await new Promise((done) => setTimeout(done, 50));
  await Promise.all([producer.disconnect(), consumer.disconnect()]);
  if (got.join() !== sent.join()) throw new Error(`sent ${sent} and got ${got}`);
}

async function isRefused(kafka) {
  const admin = kafka.admin();
  try {
    await admin.connect();
    await admin.listTopics(); // it takes the refusal of a bearer token for a challenge
  } catch (error) {
    return;
  } finally {
    await admin.disconnect();
  }
  throw new Error("it was let in");
}

const withLogin = (sasl) => new Kafka({ brokers: [known.Sasl], ssl: tls, sasl, ...quick });
const bearer = (value) => ({ mechanism: "oauthbearer", oauthBearerProvider: async () => ({ value }) });

async function main() {
  const user = { username: known.User, password: known.Password };
  for (const mechanism of ["plain", "scram-sha-256", "scram-sha-512"]) {
    await check(`log in with ${mechanism}, and again`, () => exchange(`js-${mechanism}`, withLogin({ mechanism, ...user })));
  }
  await check("log in with oauthbearer, and again", () => exchange("js-oauthbearer", withLogin(bearer(known.Token))));
  for (const mechanism of ["plain", "scram-sha-512"]) {
    const wrong = { mechanism, username: known.User, password: "guess" };
    await check(`be refused with a wrong password of ${mechanism}`, () => isRefused(withLogin(wrong)));
  }
  await check("be refused with a wrong token", () => isRefused(withLogin(bearer(`${known.Token}x`))));
  await check("connect with a certificate", () => {
    const own = { ...tls, key: fs.readFileSync(known.Key), cert: fs.readFileSync(known.Certificate) };
    return exchange("js-certificate", new Kafka({ brokers: [known.Tls], ssl: own, ...quick }));
  });
}

main().then(() => process.exit(0));
