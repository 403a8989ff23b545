// Uses kafkajs as a program would, and prints one line of JSON per check: its sentence, and an error or null.

const { Kafka, CompressionTypes, ConfigResourceTypes, logLevel } = require('kafkajs')

const TOPIC = 'orders'
const PARTITIONS = 3
const GROUP = 'readers'
const CONSUME_TIMEOUT_MS = 20000
const LEARN_TIMEOUT_MS = 5000
const POLL_MS = 20

const brokers = process.argv[2].split(',')
const kafka = new Kafka({
  brokers,
  logLevel: logLevel.NOTHING,
  retry: { retries: 2 },
})
const admin = kafka.admin()

async function check(sentence, work) {
  let error = null
  try {
    await work()
  } catch (caught) {
    error = String(caught)
  }
  console.log(JSON.stringify({ check: sentence, error }))
}

function expect(told, wanted) {
  const [left, right] = [JSON.stringify(told), JSON.stringify(wanted)]
  if (left !== right) throw new Error(`got ${left}, not ${right}`)
}

// Another broker than the one that made a change may answer, a moment before it knows.
async function expectSoon(look, wanted) {
  const deadline = Date.now() + LEARN_TIMEOUT_MS
  let told = await look()
  while (JSON.stringify(told) !== JSON.stringify(wanted) && Date.now() < deadline) {
    await new Promise((resolve) => setTimeout(resolve, POLL_MS))
    told = await look()
  }
  expect(told, wanted)
}

async function partitionCount() {
  const { topics } = await admin.fetchTopicMetadata({ topics: [TOPIC] })
  return topics[0].partitions.length
}

async function produce(settings, message) {
  const producer = kafka.producer(settings)
  await producer.connect()
  try {
    return await producer.send(message)
  } finally {
    await producer.disconnect()
  }
}

// The messages of one member's life: it reads until it has so many, commits them and leaves.
async function consume(count, { fromBeginning = true } = {}) {
  const consumer = kafka.consumer({ groupId: GROUP, sessionTimeout: 6000, heartbeatInterval: 500 })
  const messages = []
  await consumer.connect()
  try {
    await consumer.subscribe({ topics: [TOPIC], fromBeginning })
    await new Promise((resolve, reject) => {
      setTimeout(() => reject(new Error(`read ${messages.length} messages, not ${count}`)), CONSUME_TIMEOUT_MS).unref()
      const eachMessage = async ({ partition, message }) => {
        messages.push([partition, message.offset, message.value && message.value.toString()])
        await consumer.commitOffsets([{ topic: TOPIC, partition, offset: String(Number(message.offset) + 1) }])
        if (messages.length === count) resolve()
      }
      consumer.run({ autoCommit: false, eachMessage }).catch(reject)
    })
  } finally {
    await consumer.disconnect()
  }
  return messages
}

async function committedOffsets() {
  const [{ partitions }] = await admin.fetchOffsets({ groupId: GROUP, topics: [TOPIC] })
  return partitions.sort((a, b) => a.partition - b.partition).map((each) => Number(each.offset))
}

async function endOffsets() {
  const offsets = await admin.fetchTopicOffsets(TOPIC)
  return offsets.sort((a, b) => a.partition - b.partition).map((each) => Number(each.high))
}

async function main() {
  await check('connect', () => admin.connect())
  await check('describe the cluster', async () => expect((await admin.describeCluster()).brokers.length, brokers.length))
  await check('create a topic', async () =>
    expect(await admin.createTopics({ topics: [{ topic: TOPIC, numPartitions: PARTITIONS }] }), true))
  await check('a topic that is there is not created again', async () =>
    expect(await admin.createTopics({ topics: [{ topic: TOPIC }] }), false))
  await check('list topics', () => expectSoon(async () => (await admin.listTopics()).includes(TOPIC), true))
  await check('topic metadata', () => expectSoon(partitionCount, PARTITIONS))
  await check('produce to chosen partitions', async () => {
    const messages = [0, 1, 2].map((partition) => ({ partition, key: 'k', value: 'v', headers: { trace: '1' } }))
    await produce({}, { topic: TOPIC, acks: -1, messages })
    expect(await endOffsets(), [1, 1, 1])
  })
  await check('produce with gzip', async () => {
    const messages = Array.from({ length: 100 }, (_, number) => ({ partition: 0, value: `value ${number}` }))
    const [told] = await produce({}, { topic: TOPIC, compression: CompressionTypes.GZIP, messages })
    expect([told.errorCode, told.baseOffset], [0, '1'])
  })
  await check('produce with an idempotent producer', async () => {
    const [told] = await produce({ idempotent: true }, { topic: TOPIC, messages: [{ partition: 1, value: 'once' }] })
    expect([told.errorCode, told.baseOffset], [0, '1'])
  })
  await check('produce a tombstone', async () => {
    await produce({}, { topic: TOPIC, messages: [{ partition: 2, key: 'k', value: null }] })
    expect(await endOffsets(), [101, 2, 2])
  })
  await check('a consumer group reads every partition and commits', async () => {
    expect((await consume(105)).length, 105)
    expect(await committedOffsets(), await endOffsets())
  })
  await check('the next member goes on where the group was', async () => {
    await produce({}, { topic: TOPIC, messages: [{ partition: 0, value: 'next' }] })
    expect(await consume(1), [[0, '101', 'next']])
  })
  await check('list and describe groups', async () => {
    const { groups } = await admin.listGroups()
    expect(groups.map((each) => each.groupId), [GROUP])
    const described = await admin.describeGroups([GROUP])
    expect(described.groups.map((each) => [each.state, each.members.length]), [['Empty', 0]])
  })
  await check('reset offsets', async () => {
    await admin.setOffsets({ groupId: GROUP, topic: TOPIC, partitions: [{ partition: 1, offset: '1' }] })
    expect(await consume(1), [[1, '1', 'once']])
  })
  await check('delete a group', async () => {
    await admin.deleteGroups([GROUP])
    expect((await admin.listGroups()).groups, [])
  })
  await check('offsets of a time', async () => {
    const offsets = await admin.fetchTopicOffsetsByTimestamp(TOPIC, 0)
    expect(offsets.map((each) => each.offset), ['0', '0', '0'])
  })
  await check('delete records', async () => {
    await admin.deleteTopicRecords({ topic: TOPIC, partitions: [{ partition: 0, offset: '50' }] })
    const offsets = await admin.fetchTopicOffsets(TOPIC)
    expect(offsets.find((each) => each.partition === 0).low, '50')
  })
  await check('create partitions', async () => {
    await admin.createPartitions({ topicPartitions: [{ topic: TOPIC, count: 5 }] })
    await expectSoon(partitionCount, 5)
  })
  await check('alter and describe configs', async () => {
    const resource = { type: ConfigResourceTypes.TOPIC, name: TOPIC }
    const configEntries = [{ name: 'retention.ms', value: '3600000' }]
    await admin.alterConfigs({ validateOnly: false, resources: [{ ...resource, configEntries }] })
    await expectSoon(async () => {
      const asked = [{ ...resource, configNames: ['retention.ms'] }]
      const { resources } = await admin.describeConfigs({ includeSynonyms: false, resources: asked })
      return resources[0].configEntries.map((each) => each.configValue)
    }, ['3600000'])
  })
  await check('delete a topic', async () => {
    await admin.deleteTopics({ topics: [TOPIC] })
    await expectSoon(async () => (await admin.listTopics()).includes(TOPIC), false)
  })
  await check('disconnect', () => admin.disconnect())
}

main()
