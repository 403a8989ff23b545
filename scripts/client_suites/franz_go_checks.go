// Uses franz-go as a program would, and prints one line of JSON per check: its sentence, and an error or null.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	topic        = "orders"
	partitions   = 3
	replicas     = -1 // as the brokers' default has it
	checkTimeout = 15 * time.Second
	pollInterval = 20 * time.Millisecond
)

var address string

func check(sentence string, work func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.Background(), checkTimeout)
	defer cancel()
	var told *string
	if err := work(ctx); err != nil {
		text := err.Error()
		told = &text
	}
	line, _ := json.Marshal(map[string]any{"check": sentence, "error": told})
	fmt.Println(string(line))
}

func client(options ...kgo.Opt) (*kgo.Client, error) {
	return kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(strings.Split(address, ",")...)}, options...)...)
}

// Sends records to partition 0 of a topic; their offsets must follow each other.
func produce(ctx context.Context, to string, count int, options ...kgo.Opt) error {
	options = append(options, kgo.DefaultProduceTopic(to), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	producer, err := client(options...)
	if err != nil {
		return err
	}
	defer producer.Close()
	records := make([]*kgo.Record, count)
	for number := range records {
		records[number] = &kgo.Record{
			Key:     []byte("key"),
			Value:   []byte(fmt.Sprintf("value %d of a text that repeats itself, value %d", number, number)),
			Headers: []kgo.RecordHeader{{Key: "number", Value: []byte(fmt.Sprint(number))}},
		}
	}
	results := producer.ProduceSync(ctx, records...)
	if err := results.FirstErr(); err != nil {
		return err
	}
	for number, result := range results {
		if result.Record.Offset != results[0].Record.Offset+int64(number) {
			return fmt.Errorf("record %d is at offset %d", number, result.Record.Offset)
		}
	}
	return nil
}

// Reads that many records of partition 0 of a topic, with no group.
func consume(ctx context.Context, from string, at kgo.Offset, count int) ([]*kgo.Record, error) {
	wanted := map[string]map[int32]kgo.Offset{from: {0: at}}
	consumer, err := client(kgo.ConsumePartitions(wanted))
	if err != nil {
		return nil, err
	}
	defer consumer.Close()
	var records []*kgo.Record
	for len(records) < count {
		fetches := consumer.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return nil, err
		}
		records = append(records, fetches.Records()...)
	}
	return records, nil
}

func roundTrip(codec kgo.CompressionCodec, name string) func(context.Context) error {
	return func(ctx context.Context) error {
		to := "codec-" + name
		if err := produce(ctx, to, 100, kgo.ProducerBatchCompression(codec), kgo.AllowAutoTopicCreation()); err != nil {
			return err
		}
		records, err := consume(ctx, to, kgo.NewOffset().AtStart(), 100)
		if err != nil {
			return err
		}
		for number, record := range records {
			if string(record.Headers[0].Value) != fmt.Sprint(number) || record.Offset != int64(number) {
				return fmt.Errorf("record %d is not what was sent", number)
			}
		}
		return nil
	}
}

func main() {
	address = os.Args[1]
	own, err := client()
	if err != nil {
		panic(err)
	}
	defer own.Close()
	admin := kadm.NewClient(own)

	check("ping", own.Ping)
	check("create a topic", func(ctx context.Context) error {
		_, err := admin.CreateTopic(ctx, partitions, replicas, nil, topic)
		return err
	})
	check("a topic that is there is not created again", func(ctx context.Context) error {
		if _, err := admin.CreateTopic(ctx, partitions, replicas, nil, topic); err != kerr.TopicAlreadyExists {
			return fmt.Errorf("got %v", err)
		}
		return nil
	})
	check("list topics", func(ctx context.Context) error {
		topics, err := admin.ListTopics(ctx, topic)
		if err == nil && len(topics[topic].Partitions) != partitions {
			err = fmt.Errorf("%d partitions", len(topics[topic].Partitions))
		}
		return err
	})
	for name, codec := range map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	} {
		check("produce and consume with "+name, roundTrip(codec, name))
	}
	check("produce with an idempotent producer", func(ctx context.Context) error { return produce(ctx, topic, 50) })
	check("produce with acks=1", func(ctx context.Context) error {
		return produce(ctx, topic, 50, kgo.DisableIdempotentWrite(), kgo.RequiredAcks(kgo.LeaderAck()))
	})
	check("consume from an offset", func(ctx context.Context) error {
		records, err := consume(ctx, topic, kgo.NewOffset().At(60), 40)
		if err == nil && records[0].Offset != 60 {
			err = fmt.Errorf("began at %d", records[0].Offset)
		}
		return err
	})
	check("end offsets", func(ctx context.Context) error {
		offsets, err := admin.ListEndOffsets(ctx, topic)
		if end, _ := offsets.Lookup(topic, 0); err == nil && end.Offset != 100 {
			err = fmt.Errorf("the end is %d", end.Offset)
		}
		return err
	})
	check("offsets after a time", func(ctx context.Context) error {
		offsets, err := admin.ListOffsetsAfterMilli(ctx, 1, topic)
		if first, _ := offsets.Lookup(topic, 0); err == nil && first.Offset != 0 {
			err = fmt.Errorf("the first is %d", first.Offset)
		}
		return err
	})
	check("delete records", func(ctx context.Context) error {
		before := kadm.Offsets{}
		before.AddOffset(topic, 0, 10, -1)
		results, err := admin.DeleteRecords(ctx, before)
		if result, _ := results.Lookup(topic, 0); err == nil && result.LowWatermark != 10 {
			err = fmt.Errorf("the first is %d", result.LowWatermark)
		}
		return err
	})
	check("alter and describe configs", func(ctx context.Context) error {
		value := "3600000"
		change := []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "retention.ms", Value: &value}}
		if _, err := admin.AlterTopicConfigs(ctx, change, topic); err != nil {
			return err
		}
		// Another broker may answer, a moment before it knows.
		for ; ctx.Err() == nil; time.Sleep(pollInterval) {
			configs, err := admin.DescribeTopicConfigs(ctx, topic)
			if err != nil {
				return err
			}
			for _, config := range configs[0].Configs {
				if config.Key == "retention.ms" && config.MaybeValue() == value {
					return nil
				}
			}
		}
		return fmt.Errorf("the new value is not shown")
	})
	check("create partitions", func(ctx context.Context) error {
		results, err := admin.UpdatePartitions(ctx, 5, topic)
		if err == nil {
			err = results.Error()
		}
		return err
	})
	check("describe log directories", func(ctx context.Context) error {
		_, err := admin.DescribeAllLogDirs(ctx, nil)
		return err
	})
	check("delete a topic", func(ctx context.Context) error {
		_, err := admin.DeleteTopic(ctx, topic)
		return err
	})
}
