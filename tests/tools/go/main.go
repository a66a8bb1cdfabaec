// What a Kafka client in Go (franz-go) sees of a broker: it writes with every codec, reads in a group of two, and says as JSON what became of it.
//
// Usage: go run . BOOTSTRAP TOPIC RECORDS, or go run . member BOOTSTRAP TOPIC GROUP PROTOCOL
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	partitions = 4
	members    = 2
	longest    = 5 * time.Minute // only says "never"
)

var codecs = map[string]kgo.CompressionCodec{
	"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
	"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
}

type report struct {
	Written   int    // records that were acknowledged
	Read      int    // different values that came back
	Keyless   int    // those whose key was null
	Protocol  string // what the group agreed on
	Shares    []int  // partitions of each member, once it is balanced
	Committed int    // the sum of the group's offsets at the end
	Ended     int    // transactions
}

func main() {
	if os.Args[1] == "member" {
		member(os.Args[2], os.Args[3], os.Args[4], os.Args[5])
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), longest)
	defer cancel()
	bootstrap, topic := kgo.SeedBrokers(os.Args[1]), os.Args[2]
	records, err := strconv.Atoi(os.Args[3])
	must(err)
	admin := kadm.NewClient(client(bootstrap))
	defer admin.Close()
	made, err := admin.CreateTopic(ctx, partitions, -1, nil, topic)
	must(err)
	must(made.Err)
	told := report{}
	for name, codec := range codecs {
		told.Written += write(ctx, bootstrap, topic, name, codec, records)
	}
	read(ctx, admin, bootstrap, topic, &told)
	transactional := client(bootstrap, kgo.TransactionalID(topic), kgo.DefaultProduceTopic(topic))
	for _, end := range []kgo.TransactionEndTry{kgo.TryCommit, kgo.TryAbort, kgo.TryCommit} {
		must(transactional.BeginTransaction())
		must(transactional.ProduceSync(ctx, kgo.StringRecord("transactional")).FirstErr())
		must(transactional.EndTransaction(ctx, end))
		told.Ended++
	}
	transactional.Close()
	must(json.NewEncoder(os.Stdout).Encode(told))
}

func write(ctx context.Context, bootstrap kgo.Opt, topic, name string, codec kgo.CompressionCodec, records int) int {
	producer := client(bootstrap, kgo.DefaultProduceTopic(topic), kgo.ProducerBatchCompression(codec))
	defer producer.Close()
	batch := make([]*kgo.Record, records)
	for at := range batch {
		batch[at] = kgo.StringRecord(fmt.Sprintf("%s %d", name, at))
		if at%2 == 0 {
			batch[at].Key = fmt.Append(nil, at)
		}
	}
	results := producer.ProduceSync(ctx, batch...)
	must(results.FirstErr())
	return len(results)
}

// Two members read until everything is committed and both have their share; then they leave.
func read(ctx context.Context, admin *kadm.Client, bootstrap kgo.Opt, topic string, told *report) {
	group := topic + "-group"
	var readers []*kgo.Client
	for range members {
		readers = append(readers, client(
			bootstrap, kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic), kgo.DisableAutoCommit(),
			kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.HeartbeatInterval(200*time.Millisecond),
		))
	}
	keys := map[string][]byte{}
	for told.Committed < told.Written || len(told.Shares) < members {
		must(ctx.Err())
		for _, reader := range readers {
			turn, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
			reader.PollFetches(turn).EachRecord(func(record *kgo.Record) {
				keys[string(record.Value)] = record.Key
			})
			cancel()
			_ = reader.CommitUncommittedOffsets(ctx) // in a rebalance it is refused, and the next one commits
		}
		told.Protocol, told.Shares = shares(ctx, admin, group)
		told.Committed = committed(ctx, admin, group)
	}
	for _, reader := range readers {
		reader.Close()
	}
	told.Read = len(keys)
	for _, key := range keys {
		if key == nil {
			told.Keyless++
		}
	}
}

func committed(ctx context.Context, admin *kadm.Client, group string) (sum int) {
	offsets, err := admin.FetchOffsets(ctx, group)
	must(err)
	offsets.Each(func(offset kadm.OffsetResponse) { sum += int(max(offset.At, 0)) })
	return sum
}

func shares(ctx context.Context, admin *kadm.Client, group string) (protocol string, held []int) {
	described, err := admin.DescribeGroups(ctx, group)
	must(err)
	for _, member := range described[group].Members {
		if assigned, ok := member.Assigned.AsConsumer(); ok && len(assigned.Topics) > 0 {
			held = append(held, len(assigned.Topics[0].Partitions))
		}
	}
	return described[group].Protocol, held
}

func client(options ...kgo.Opt) *kgo.Client {
	made, err := kgo.NewClient(options...)
	must(err)
	return made
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
