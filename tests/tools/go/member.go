package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// member reads a topic in a group until standard input ends, and prints what it commits, as GroupMember.java does.
//
// Arguments: member BOOTSTRAP TOPIC GROUP PROTOCOL
func member(bootstrap, topic, group, protocol string) {
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	held := map[int32]bool{}
	print := func() {
		line := "assigned"
		for partition := range held {
			line += fmt.Sprint(" ", partition)
		}
		fmt.Println(line)
	}
	changed := func(now bool) func(context.Context, *kgo.Client, map[string][]int32) {
		return func(_ context.Context, _ *kgo.Client, partitions map[string][]int32) {
			for _, partition := range partitions[topic] {
				if held[partition] = now; !now {
					delete(held, partition)
				}
			}
			print()
		}
	}
	options := []kgo.Opt{
		kgo.SeedBrokers(bootstrap), kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic), kgo.DisableAutoCommit(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.BlockRebalanceOnPoll(), kgo.SessionTimeout(time.Minute),
		kgo.OnPartitionsAssigned(changed(true)), kgo.OnPartitionsRevoked(changed(false)), kgo.OnPartitionsLost(changed(false)),
	}
	if protocol == "consumer" {
		options = append(options, kgo.ServerSideBalancer(), kgo.Balancers(kgo.StickyBalancer()))
	}
	reader := client(options...)
	for ctx.Err() == nil {
		turn, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		fetches := reader.PollFetches(turn)
		cancel()
		// No partition is revoked between the poll and AllowRebalance, so each range is committed by its owner.
		fetches.EachPartition(func(partition kgo.FetchTopicPartition) {
			count := len(partition.Records)
			if count == 0 {
				return
			}
			must(reader.CommitRecords(context.Background(), partition.Records...))
			first, last := partition.Records[0].Offset, partition.Records[count-1].Offset
			fmt.Println("committed", partition.Partition, first, last+1)
		})
		reader.AllowRebalance()
	}
	reader.CloseAllowingRebalance()
	fmt.Println("leaving")
}
