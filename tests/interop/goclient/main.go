// Command goclient drives a running node with grpc-go, the client library that Go users have: every method,
// small and large values, streams of many messages, ranges, misses, deadlines, cancellation.
//
//	goclient -addr HOST:PORT -descriptors FILE
//
// FILE is a descriptor set of cache.proto (protoc --descriptor_set_out --include_imports), so no generated
// code is needed. Exit 0 and a line "ok N checks" when everything held.
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
)

const service = "/cache.CacheService/"

type client struct {
	conn   *grpc.ClientConn
	files  *protoregistry.Files
	checks int
	mu     sync.Mutex
}

func fail(format string, args ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", args...)
	os.Exit(1)
}

func (c *client) check(ok bool, format string, args ...any) {
	c.mu.Lock()
	c.checks++
	c.mu.Unlock()
	if !ok {
		fail(format, args...)
	}
}

// message makes a message of the package with fields by name.
func (c *client) message(name string, fields map[string]any) *dynamicpb.Message {
	d, err := c.files.FindDescriptorByName(protoreflect.FullName("cache." + name))
	if err != nil {
		fail("no message %s: %v", name, err)
	}
	m := dynamicpb.NewMessage(d.(protoreflect.MessageDescriptor))
	for k, v := range fields {
		m.Set(m.Descriptor().Fields().ByName(protoreflect.Name(k)), protoreflect.ValueOf(v))
	}
	return m
}

func field(m *dynamicpb.Message, name string) protoreflect.Value {
	return m.Get(m.Descriptor().Fields().ByName(protoreflect.Name(name)))
}

func ctx() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), 60*time.Second)
}

func (c *client) put(key string, value []byte, ttl int64) error {
	x, cancel := ctx()
	defer cancel()
	reply := c.message("PutResponse", nil)
	return c.conn.Invoke(x, service+"PutObject",
		c.message("PutRequest", map[string]any{"key": key, "data": value, "ttl_seconds": ttl}), reply)
}

func (c *client) putStream(key string, value []byte, chunk int) error {
	x, cancel := ctx()
	defer cancel()
	s, err := c.conn.NewStream(x, &grpc.StreamDesc{ClientStreams: true}, service+"Put")
	if err != nil {
		return err
	}
	fields := map[string]any{"key": key}
	for at := 0; at < len(value); at += chunk {
		fields["data"] = value[at:min(at+chunk, len(value))]
		if err := s.SendMsg(c.message("PutRequest", fields)); err != nil {
			break // the status tells
		}
		fields = map[string]any{}
	}
	_ = s.CloseSend()
	reply := c.message("PutResponse", nil)
	if err := s.RecvMsg(reply); err != nil {
		return err
	}
	c.check(field(reply, "success").Bool(), "stream put of %s: success is false", key)
	return nil
}

func (c *client) get(key string, start, end int64) ([]byte, error) {
	x, cancel := ctx()
	defer cancel()
	s, err := c.conn.NewStream(x, &grpc.StreamDesc{ServerStreams: true}, service+"Get")
	if err != nil {
		return nil, err
	}
	if err := s.SendMsg(c.message("GetRequest", map[string]any{"key": key, "start": start, "end": end})); err != nil {
		return nil, err
	}
	_ = s.CloseSend()
	var out []byte
	for {
		reply := c.message("GetResponse", nil)
		err := s.RecvMsg(reply)
		if err == io.EOF {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		out = append(out, field(reply, "data").Bytes()...)
	}
}

func (c *client) call(method, request string, fields map[string]any, response string) (*dynamicpb.Message, error) {
	x, cancel := ctx()
	defer cancel()
	reply := c.message(response, nil)
	err := c.conn.Invoke(x, service+method, c.message(request, fields), reply)
	return reply, err
}

func pattern(n int, seed byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*131) ^ byte(i>>8) ^ seed
	}
	return b
}

func (c *client) values() {
	for _, n := range []int{0, 1, 100, 65535, 65536, 262143, 262144, 262145, 1 << 20, 10<<20 + 7} {
		key := fmt.Sprintf("go/size/%d", n)
		want := pattern(n, 7)
		c.check(c.put(key, want, 0) == nil, "put of %d bytes", n)
		got, err := c.get(key, 0, 0)
		c.check(err == nil && bytes.Equal(got, want), "get of %d bytes: %v, %d bytes", n, err, len(got))
		if n > 10 {
			got, err = c.get(key, int64(n/2), int64(n/2+4))
			c.check(err == nil && bytes.Equal(got, want[n/2:n/2+5]), "range in %d bytes: %v", n, err)
		}
	}
	for _, chunk := range []int{1000, 65536, 1 << 20, 3 << 20} {
		key, want := fmt.Sprintf("go/stream/%d", chunk), pattern(5<<20+3, byte(chunk>>4))
		err := c.putStream(key, want, chunk)
		c.check(err == nil, "stream put in %d bytes: %v", chunk, err)
		got, err := c.get(key, 0, 0)
		c.check(err == nil && bytes.Equal(got, want), "get of the stream in %d: %v", chunk, err)
	}
}

func (c *client) misses() {
	_, err := c.get("go/missing", 0, 0)
	c.check(status.Code(err) == codes.NotFound && status.Convert(err).Message() == "key not found", "miss: %v", err)
	err = c.put("", []byte("x"), 0)
	c.check(status.Code(err) == codes.InvalidArgument, "empty key: %v", err)
	_, err = c.call("Nothing", "GetTopologyRequest", nil, "GetTopologyResponse")
	c.check(status.Code(err) == codes.Unimplemented, "unknown method: %v", err)
	x, cancel := context.WithTimeout(context.Background(), time.Nanosecond)
	defer cancel()
	err = c.conn.Invoke(x, service+"PutObject", c.message("PutRequest", map[string]any{"key": "k"}), c.message("PutResponse", nil))
	c.check(status.Code(err) == codes.DeadlineExceeded, "deadline: %v", err)
	r, err := c.call("GetTopology", "GetTopologyRequest", nil, "GetTopologyResponse")
	c.check(err == nil && field(r, "error").String() == "cluster mode not enabled", "topology: %v", err)
}

func (c *client) lists() {
	for i := 0; i < 25; i++ {
		c.check(c.put(fmt.Sprintf("go/list/%02d", i), []byte("v"), 0) == nil, "put %d", i)
	}
	var keys []string
	token := ""
	for page := 0; page < 10; page++ {
		r, err := c.call("List", "ListRequest", map[string]any{"prefix": "go/list/", "limit": int32(10), "continuation_token": token}, "ListResponse")
		c.check(err == nil, "list: %v", err)
		l := field(r, "keys").List()
		for i := 0; i < l.Len(); i++ {
			keys = append(keys, l.Get(i).String())
		}
		if !field(r, "has_more").Bool() {
			break
		}
		token = field(r, "continuation_token").String()
	}
	c.check(len(keys) == 25 && keys[0] == "go/list/00" && keys[24] == "go/list/24", "list: %v", keys)
	r, err := c.call("ListWithValues", "ListRequest", map[string]any{"prefix": "go/list/"}, "ListWithValuesResponse")
	c.check(err == nil && field(r, "entries").List().Len() == 25, "list with values: %v", err)
	_, err = c.call("Delete", "DeleteRequest", map[string]any{"key": "go/list/00"}, "DeleteResponse")
	c.check(err == nil, "delete: %v", err)
	_, err = c.get("go/list/00", 0, 0)
	c.check(status.Code(err) == codes.NotFound, "get of a deleted key: %v", err)
}

// many uses one connection from many goroutines at once, some of which give up.
func (c *client) many() {
	var wg sync.WaitGroup
	for g := 0; g < 64; g++ {
		wg.Add(1)
		go func(g int) {
			defer wg.Done()
			for i := 0; i < 40; i++ {
				key, want := fmt.Sprintf("go/many/%d/%d", g, i), pattern(100+i*997, byte(g))
				c.check(c.put(key, want, 0) == nil, "put %s", key)
				if i%8 == 0 {
					x, cancel := context.WithCancel(context.Background())
					if s, err := c.conn.NewStream(x, &grpc.StreamDesc{ServerStreams: true}, service+"Get"); err == nil {
						_ = s.SendMsg(c.message("GetRequest", map[string]any{"key": key}))
					}
					cancel()
				}
				got, err := c.get(key, 0, 0)
				c.check(err == nil && bytes.Equal(got, want), "get %s: %v", key, err)
			}
		}(g)
	}
	wg.Wait()
}

func main() {
	addr := flag.String("addr", "localhost:9000", "the node")
	descriptors := flag.String("descriptors", "", "descriptor set of cache.proto")
	flag.Parse()
	raw, err := os.ReadFile(*descriptors)
	if err != nil {
		fail("%v", err)
	}
	set := &descriptorpb.FileDescriptorSet{}
	if err := proto.Unmarshal(raw, set); err != nil {
		fail("%s: %v", *descriptors, err)
	}
	files, err := protodesc.NewFiles(set)
	if err != nil {
		fail("%s: %v", *descriptors, err)
	}
	conn, err := grpc.NewClient(*addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second, PermitWithoutStream: true}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(128<<20), grpc.MaxCallSendMsgSize(128<<20)))
	if err != nil {
		fail("%v", err)
	}
	defer conn.Close()
	c := &client{conn: conn, files: files}
	c.values()
	c.misses()
	c.lists()
	c.many()
	fmt.Printf("ok %d checks\n", c.checks)
}
