// A static member of a group with @platformatic/kafka: prints each value of its partitions, and commits it.
import { Consumer, stringDeserializers } from '@platformatic/kafka'

const [bootstrap, topic, groupId, groupInstanceId] = process.argv.slice(2)
const consumer = new Consumer({
  groupId,
  groupInstanceId,
  clientId: groupInstanceId,
  bootstrapBrokers: [bootstrap],
  deserializers: stringDeserializers,
  sessionTimeout: 60000,
  heartbeatInterval: 500,
  retries: 100,
})
const stream = await consumer.consume({ topics: [topic], mode: 'committed', fallbackMode: 'earliest', autocommit: false })
for await (const message of stream) {
  console.log(`${message.partition} ${message.value}`)
  await message.commit()
}
