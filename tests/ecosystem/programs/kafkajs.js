// Uses kafkajs as a program would: `produce` writes numbered messages one batch after the other, `consume` is a member of
// a group that prints each value. Messages have keys because kafkajs chooses other partitions for the others when it sends
// them again, with sequence numbers that the broker has seen.
const { Kafka, logLevel } = require('kafkajs')

const [mode, bootstrap, topic, count, group] = process.argv.slice(2)
const kafka = new Kafka({ brokers: [bootstrap], logLevel: logLevel.ERROR, retry: { retries: 30, maxRetryTime: 1000 } })
const BATCH = 25

async function produce() {
  const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1 })
  await producer.connect()
  for (let next = 0; next < Number(count); next += BATCH) {
    const messages = Array.from({ length: BATCH }, (_, index) => ({
      key: String(next + index),
      value: String(next + index),
    }))
    await producer.send({ topic, acks: -1, messages })
    console.log(next + BATCH)
  }
  await producer.disconnect()
}

async function consume() {
  const consumer = kafka.consumer({ groupId: group, sessionTimeout: 6000, heartbeatInterval: 500 })
  await consumer.connect()
  await consumer.subscribe({ topics: [topic], fromBeginning: true })
  await consumer.run({
    autoCommitInterval: 200,
    eachMessage: async ({ message }) => console.log(message.value.toString()),
  })
}

const work = mode === 'produce' ? produce : consume
work().catch((error) => {
  console.error(error)
  process.exit(1)
})
