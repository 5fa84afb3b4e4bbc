// Prints what Apache BookKeeper's own classes write, for tests/wire/bookkeeper/golden.txt: a line
// for each thing, its name and its bytes in hex. See README.md for how to run it.
//
// In BookKeeper's package, because the v2 messages are visible only there.
package org.apache.bookkeeper.proto;

import com.google.protobuf.ByteString;
import com.google.protobuf.ExtensionRegistry;
import io.netty.buffer.ByteBuf;
import io.netty.buffer.ByteBufAllocator;
import io.netty.buffer.Unpooled;
import io.netty.buffer.UnpooledByteBufAllocator;
import io.netty.channel.embedded.EmbeddedChannel;
import io.netty.handler.codec.LengthFieldBasedFrameDecoder;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.stream.LongStream;
import org.apache.bookkeeper.bookie.Cookie;
import org.apache.bookkeeper.discover.BookieServiceInfo;
import org.apache.bookkeeper.meta.LedgerLayout;
import org.apache.bookkeeper.meta.ZkLedgerUnderreplicationManager;
import org.apache.bookkeeper.proto.BookkeeperProtocol.*;
import org.apache.bookkeeper.proto.checksum.DigestManager;
import org.apache.bookkeeper.util.AvailabilityOfEntriesOfLedger;
import org.apache.bookkeeper.util.ByteBufList;

public class GoldenVectors {
    static final ByteBufAllocator ALLOCATOR = UnpooledByteBufAllocator.DEFAULT;
    static final byte[] PASSWORD = "secret".getBytes(StandardCharsets.UTF_8);
    static final byte V2 = 2;
    static byte[] key;
    static byte[] entry;
    static byte[] secondEntry;
    static byte[] lacPacket;

    public static void main(String[] args) throws Exception {
        key = DigestManager.generateMasterKey(PASSWORD);
        entry = sealed(7, 3, 2, 40, "golden-3");
        secondEntry = sealed(7, 4, 3, 48, "golden-4");
        lacPacket = flat(digest(7, false).computeDigestAndPackageForSendingLac(3));
        print("entry", entry);
        print("second_entry", secondEntry);
        print("lac_packet", lacPacket);
        v2Requests();
        v2Responses();
        v3Requests();
        v3Responses();
        v3Statuses();
        entrySets();
        records();
        frameLimit();
    }

    static DigestManager digest(long ledgerId, boolean isV2) throws Exception {
        return DigestManager.instantiate(
            ledgerId, PASSWORD, DataFormats.LedgerMetadataFormat.DigestType.CRC32C, ALLOCATOR, isV2);
    }

    static byte[] sealed(long ledgerId, long entryId, long lac, long length, String payload)
            throws Exception {
        return flat(digest(ledgerId, false).computeDigestAndPackageForSending(
            entryId, lac, length, text(payload), key, 0));
    }

    static ByteBuf text(String text) {
        return Unpooled.wrappedBuffer(text.getBytes(StandardCharsets.UTF_8));
    }

    static byte[] flat(Object encoded) {
        if (encoded instanceof ByteBufList list) {
            return list.toArray();
        }
        ByteBuf buffer = (ByteBuf) encoded;
        byte[] bytes = new byte[buffer.readableBytes()];
        buffer.getBytes(buffer.readerIndex(), bytes);
        return bytes;
    }

    static void print(String name, byte[] bytes) {
        System.out.println(name + " " + HexFormat.of().formatHex(bytes));
    }

    static void print(String name, String text) {
        print(name, text.getBytes(StandardCharsets.UTF_8));
    }

    // v2

    static void v2Requests() throws Exception {
        print("v2.request.add", flat(digest(7, true).computeDigestAndPackageForSending(
            3, 2, 40, text("golden-3"), key, 0)));
        print("v2.request.recovery_add", flat(digest(7, true).computeDigestAndPackageForSending(
            3, 2, 40, text("golden-3"), key, 0x2 | 0x4)));
        var codec = new BookieProtoEncoding.RequestEnDeCoderPreV3(ExtensionRegistry.newInstance());
        print("v2.request.read", flat(codec.encode(
            BookieProtocol.ReadRequest.create(V2, 7, 3, (short) 0, null), ALLOCATOR)));
        print("v2.request.read_last_fencing", flat(codec.encode(
            BookieProtocol.ReadRequest.create(V2, 7, -1, (short) 1, key), ALLOCATOR)));
        print("v2.request.recovery_read", flat(codec.encode(
            BookieProtocol.ReadRequest.create(V2, 7, 4, (short) 5, key), ALLOCATOR)));
        print("v2.request.read_version_1", flat(codec.encode(
            BookieProtocol.ReadRequest.create((byte) 1, 7, 3, (short) 0, null), ALLOCATOR)));
        print("v2.request.read_version_0", flat(codec.encode(
            BookieProtocol.ReadRequest.create((byte) 0, 7, 3, (short) 0, null), ALLOCATOR)));
        print("v2.request.batch_read", flat(codec.encode(BookieProtocol.BatchedReadRequest.create(
            V2, 7, 3, (short) 0, null, 2702, 100, 65536), ALLOCATOR)));
        print("v2.request.batch_read_fencing", flat(codec.encode(
            BookieProtocol.BatchedReadRequest.create(
                V2, 7, 3, (short) 1, key, 2702, 100, 65536), ALLOCATOR)));
        print("v2.request.auth", flat(codec.encode(
            new BookieProtocol.AuthRequest(V2, auth()), ALLOCATOR)));
    }

    static void v2Responses() throws Exception {
        var codec = new BookieProtoEncoding.ResponseEnDeCoderPreV3(ExtensionRegistry.newInstance());
        print("v2.response.add", flat(codec.encode(
            BookieProtocol.AddResponse.create(V2, 0, 7, 3), ALLOCATOR)));
        print("v2.response.add_fenced", flat(codec.encode(
            BookieProtocol.AddResponse.create(V2, 104, 7, 3), ALLOCATOR)));
        print("v2.response.read", flat(codec.encode(
            new BookieProtocol.ReadResponse(V2, 0, 7, 3, Unpooled.wrappedBuffer(entry)),
            ALLOCATOR)));
        print("v2.response.read_missing", flat(codec.encode(
            new BookieProtocol.ReadResponse(V2, 2, 7, -1), ALLOCATOR)));
        print("v2.response.read_version_1", flat(codec.encode(
            new BookieProtocol.ReadResponse((byte) 1, 2, 7, 3), ALLOCATOR)));
        print("v2.response.read_version_0", flat(codec.encode(
            new BookieProtocol.ReadResponse((byte) 0, 2, 7, 3), ALLOCATOR)));
        ByteBufList entries = ByteBufList.get(Unpooled.wrappedBuffer(entry));
        entries.add(Unpooled.wrappedBuffer(secondEntry));
        print("v2.response.batch_read", flat(codec.encode(
            new BookieProtocol.BatchedReadResponse(V2, 0, 7, 3, 2702, entries), ALLOCATOR)));
        print("v2.response.batch_read_missing", flat(codec.encode(
            new BookieProtocol.BatchedReadResponse(V2, 2, 7, 3, 2702), ALLOCATOR)));
        print("v2.response.auth", flat(codec.encode(
            new BookieProtocol.AuthResponse(V2, auth()), ALLOCATOR)));
    }

    static AuthMessage auth() {
        return AuthMessage.newBuilder().setAuthPluginName("TestPlugin")
            .setPayload(ByteString.copyFromUtf8("credentials")).build();
    }

    // v3

    static BKPacketHeader.Builder header(OperationType operation, long txnId) {
        return BKPacketHeader.newBuilder().setVersion(ProtocolVersion.VERSION_THREE)
            .setOperation(operation).setTxnId(txnId);
    }

    static Request.Builder request(OperationType operation, long txnId) {
        return Request.newBuilder().setHeader(header(operation, txnId));
    }

    static void request(String name, Request.Builder request) throws Exception {
        var codec = new BookieProtoEncoding.RequestEnDecoderV3(ExtensionRegistry.newInstance());
        print("v3.request." + name, flat(codec.encode(request.build(), ALLOCATOR)));
    }

    static AddRequest.Builder add(long ledgerId, long entryId) {
        return AddRequest.newBuilder().setLedgerId(ledgerId).setEntryId(entryId)
            .setMasterKey(ByteString.copyFrom(key)).setBody(ByteString.copyFrom(entry));
    }

    static ReadRequest.Builder read(long entryId) {
        return ReadRequest.newBuilder().setLedgerId(7).setEntryId(entryId);
    }

    static void v3Requests() throws Exception {
        request("add", request(OperationType.ADD_ENTRY, 1).setAddRequest(add(7, 3)));
        request("add_large_numbers", request(OperationType.ADD_ENTRY, 70000)
            .setAddRequest(add((1L << 40) + 5, Long.MAX_VALUE)));
        request("add_deferred_sync", request(OperationType.ADD_ENTRY, 300)
            .setAddRequest(add(7, 3).setWriteFlags(1)));
        request("recovery_add", Request.newBuilder()
            .setHeader(header(OperationType.ADD_ENTRY, 935).setPriority(100))
            .setAddRequest(add(7, 3).setFlag(AddRequest.Flag.RECOVERY_ADD)));
        request("read", request(OperationType.READ_ENTRY, 2).setReadRequest(read(3)));
        request("read_last_fencing", request(OperationType.READ_ENTRY, 2).setReadRequest(
            read(-1).setMasterKey(ByteString.copyFrom(key))
                .setFlag(ReadRequest.Flag.FENCE_LEDGER)));
        request("recovery_read", Request.newBuilder()
            .setHeader(header(OperationType.READ_ENTRY, 937).setPriority(100))
            .setReadRequest(read(4).setMasterKey(ByteString.copyFrom(key))
                .setFlag(ReadRequest.Flag.FENCE_LEDGER)));
        request("long_poll", request(OperationType.READ_ENTRY, 1100).setReadRequest(
            read(-1).setPreviousLAC(3).setTimeOut(1000)
                .setFlag(ReadRequest.Flag.ENTRY_PIGGYBACK)));
        request("long_poll_from_start", request(OperationType.READ_ENTRY, 1101).setReadRequest(
            read(-1).setPreviousLAC(-1).setTimeOut(1000)));
        request("write_lac", request(OperationType.WRITE_LAC, 3).setWriteLacRequest(
            WriteLacRequest.newBuilder().setLedgerId(7).setLac(3)
                .setMasterKey(ByteString.copyFrom(key)).setBody(ByteString.copyFrom(lacPacket))));
        request("read_lac", request(OperationType.READ_LAC, 4)
            .setReadLacRequest(ReadLacRequest.newBuilder().setLedgerId(7)));
        request("force_ledger", request(OperationType.FORCE_LEDGER, 5)
            .setForceLedgerRequest(ForceLedgerRequest.newBuilder().setLedgerId(7)));
        request("bookie_info", request(OperationType.GET_BOOKIE_INFO, 6)
            .setGetBookieInfoRequest(GetBookieInfoRequest.newBuilder().setRequested(3)));
        request("list_entries", request(OperationType.GET_LIST_OF_ENTRIES_OF_LEDGER, 7)
            .setGetListOfEntriesOfLedgerRequest(
                GetListOfEntriesOfLedgerRequest.newBuilder().setLedgerId(7)));
        request("auth", request(OperationType.AUTH, 8).setAuthRequest(auth()));
        request("start_tls", request(OperationType.START_TLS, 9)
            .setStartTLSRequest(StartTLSRequest.newBuilder()));
        request("range_read", request(OperationType.RANGE_READ_ENTRY, 10));
        request("batch_read", request(OperationType.BATCH_READ_ENTRY, 11));
        request("version_two", Request.newBuilder()
            .setHeader(header(OperationType.READ_ENTRY, 12)
                .setVersion(ProtocolVersion.VERSION_TWO)).setReadRequest(read(3)));
        request("read_with_context", request(OperationType.READ_ENTRY, 13).setReadRequest(read(3))
            .addRequestContext(ContextPair.newBuilder().setKey("k").setValue("v")));
    }

    static Response.Builder response(OperationType operation, long txnId, StatusCode status) {
        return Response.newBuilder().setHeader(header(operation, txnId)).setStatus(status);
    }

    static void response(String name, Response.Builder response) throws Exception {
        var codec = new BookieProtoEncoding.ResponseEnDecoderV3(ExtensionRegistry.newInstance());
        print("v3.response." + name, flat(codec.encode(response.build(), ALLOCATOR)));
    }

    static ReadResponse.Builder readAnswer(StatusCode status, long entryId) {
        return ReadResponse.newBuilder().setStatus(status).setLedgerId(7).setEntryId(entryId);
    }

    static void v3Responses() throws Exception {
        StatusCode ok = StatusCode.EOK;
        response("add", response(OperationType.ADD_ENTRY, 1, ok).setAddResponse(
            AddResponse.newBuilder().setStatus(ok).setLedgerId(7).setEntryId(3)));
        response("add_large_numbers", response(OperationType.ADD_ENTRY, 1L << 40, ok)
            .setAddResponse(AddResponse.newBuilder().setStatus(ok).setLedgerId((1L << 40) + 5)
                .setEntryId(Long.MAX_VALUE)));
        response("read", response(OperationType.READ_ENTRY, 2, ok).setReadResponse(
            readAnswer(ok, 3).setBody(ByteString.copyFrom(entry)).setMaxLAC(8)));
        response("read_fencing", response(OperationType.READ_ENTRY, 2, ok).setReadResponse(
            readAnswer(ok, -1).setBody(ByteString.copyFrom(entry))));
        response("read_missing", response(OperationType.READ_ENTRY, 650, StatusCode.ENOENTRY)
            .setReadResponse(readAnswer(StatusCode.ENOENTRY, 24).setMaxLAC(-1)));
        response("long_poll", response(OperationType.READ_ENTRY, 1100, ok).setReadResponse(
            readAnswer(ok, 3).setBody(ByteString.copyFrom(entry)).setMaxLAC(4)
                .setLacUpdateTimestamp(1700000000123L)));
        response("long_poll_timeout", response(OperationType.READ_ENTRY, 1100, ok).setReadResponse(
            readAnswer(ok, -1).setMaxLAC(3)));
        response("write_lac", response(OperationType.WRITE_LAC, 3, ok).setWriteLacResponse(
            WriteLacResponse.newBuilder().setStatus(ok).setLedgerId(7)));
        response("read_lac", response(OperationType.READ_LAC, 4, ok).setReadLacResponse(
            ReadLacResponse.newBuilder().setStatus(ok).setLedgerId(7)
                .setLacBody(ByteString.copyFrom(lacPacket))
                .setLastEntryBody(ByteString.copyFrom(entry))));
        response("read_lac_neither", response(OperationType.READ_LAC, 4, StatusCode.ENOENTRY)
            .setReadLacResponse(ReadLacResponse.newBuilder()
                .setStatus(StatusCode.ENOENTRY).setLedgerId(7)));
        response("force_ledger", response(OperationType.FORCE_LEDGER, 5, ok)
            .setForceLedgerResponse(ForceLedgerResponse.newBuilder()
                .setStatus(ok).setLedgerId(7)));
        response("bookie_info", response(OperationType.GET_BOOKIE_INFO, 6, ok)
            .setGetBookieInfoResponse(GetBookieInfoResponse.newBuilder().setStatus(ok)
                .setTotalDiskCapacity(1L << 40).setFreeDiskSpace(123456789)));
        response("list_entries", response(OperationType.GET_LIST_OF_ENTRIES_OF_LEDGER, 7, ok)
            .setGetListOfEntriesOfLedgerResponse(GetListOfEntriesOfLedgerResponse.newBuilder()
                .setStatus(ok).setLedgerId(7).setAvailabilityOfEntriesOfLedger(
                    ByteString.copyFrom(entrySet(LongStream.range(3, 10))))));
        response("auth", response(OperationType.AUTH, 8, ok).setAuthResponse(auth()));
        response("start_tls", response(OperationType.START_TLS, 9, ok)
            .setStartTLSResponse(StartTLSResponse.newBuilder()));
        response("bad_request", response(OperationType.RANGE_READ_ENTRY, 10, StatusCode.EBADREQ));
    }

    static void v3Statuses() throws Exception {
        for (StatusCode status : StatusCode.values()) {
            response("status." + status.name(), response(OperationType.ADD_ENTRY, 1, status)
                .setAddResponse(AddResponse.newBuilder().setStatus(status)
                    .setLedgerId(7).setEntryId(3)));
        }
    }

    // Records

    static byte[] entrySet(LongStream entries) {
        return new AvailabilityOfEntriesOfLedger(entries.iterator())
            .serializeStateOfEntriesOfLedger();
    }

    static void entrySets() {
        print("entry_set.empty", entrySet(LongStream.empty()));
        print("entry_set.one_run", entrySet(LongStream.range(5, 1005)));
        print("entry_set.striped", entrySet(LongStream.range(0, 31).filter(id -> id % 3 != 2)));
        print("entry_set.gaps", entrySet(LongStream.of(0, 1, 2, 5, 9, 10, 11, 1L << 40)));
        // Grouped as EntrySet does: runs of 2 every 3 from 0 to 30, then 40, then 50 to 59.
        byte[] ours = HexFormat.of().parseHex(
            "0000000000000003" + "00".repeat(56)
            + "0000000000000000000000000000001b0000000200000003"
            + "000000000000002800000000000000280000000100000000"
            + "000000000000003200000000000000320000000a00000000");
        AvailabilityOfEntriesOfLedger read = new AvailabilityOfEntriesOfLedger(ours);
        print("entry_set.ours", ours);
        StringBuilder found = new StringBuilder();
        for (long id = 0; id < 100; id++) {
            if (read.isEntryAvailable(id)) {
                found.append(id).append(' ');
            }
        }
        print("entry_set.ours_as_java_reads_it",
            read.getTotalNumOfAvailableEntries() + ": " + found.toString().trim());
    }

    static void records() throws Exception {
        BookieServiceInfo.Endpoint bookie = new BookieServiceInfo.Endpoint(
            "bookie", 31810, "127.0.0.1", "bookie-rpc", List.of(), List.of());
        BookieServiceInfo.Endpoint http = new BookieServiceInfo.Endpoint(
            "httpserver", 8080, "b\u00fccher.example", "http", List.of("basic"), List.of("x", "y"));
        LinkedHashMap<String, String> properties = new LinkedHashMap<>();
        properties.put("zone", "a");
        Method serialize = Class.forName("org.apache.bookkeeper.discover.ZKRegistrationManager")
            .getDeclaredMethod("serializeBookieServiceInfo", BookieServiceInfo.class);
        serialize.setAccessible(true);
        print("record.service_info", (byte[]) serialize.invoke(
            null, new BookieServiceInfo(new LinkedHashMap<>(), List.of(bookie))));
        print("record.service_info_full", (byte[]) serialize.invoke(
            null, new BookieServiceInfo(properties, List.of(bookie, http))));
        print("record.layout", new LedgerLayout(
            "org.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory", 1).serialize());
        print("record.cookie", Cookie.newBuilder().setBookieId("127.0.0.1:31810")
            .setJournalDirs("/data/journal")
            .setLedgerDirs(Cookie.encodeDirPaths(new String[] {"/data/ledgers"}))
            .setInstanceId("88d2da4f-c7c3-4081-b1cd-0deae3b4485d").build().toString());
        print("record.underreplicated", DataFormats.UnderreplicatedLedgerFormat.newBuilder()
            .addReplica("127.0.0.1:31810").addReplica("b\u00fccher\n\"x\"").setCtime(1700000000123L)
            .build().toString());
        print("record.underreplicated_without_time",
            DataFormats.UnderreplicatedLedgerFormat.newBuilder().addReplica("a:1").build()
                .toString());
        print("record.underreplication_layout",
            DataFormats.LedgerRereplicationLayoutFormat.newBuilder()
                .setType("BASIC").setVersion(1).build().toString());
        print("record.lock", DataFormats.LockDataFormat.newBuilder()
            .setBookieId("host.example").build().toString());
        print("record.vote", DataFormats.AuditorVoteFormat.newBuilder()
            .setBookieId("127.0.0.1:31810").build().toString());
        print("record.check_all_ledgers", DataFormats.CheckAllLedgersFormat.newBuilder()
            .setCheckAllLedgersCTime(1700000000123L).build().toByteArray());
        print("record.placement_policy_check", DataFormats.PlacementPolicyCheckFormat.newBuilder()
            .setPlacementPolicyCheckCTime(1700000000123L).build().toByteArray());
        print("record.replicas_check", DataFormats.ReplicasCheckFormat.newBuilder()
            .setReplicasCheckCTime(1700000000123L).build().toByteArray());
        print("path.underreplicated",
            ZkLedgerUnderreplicationManager.getUrLedgerZnode("", 0x1234567890abcL));
        print("path.underreplicated_lock",
            ZkLedgerUnderreplicationManager.getUrLedgerLockZnode("", 13));
    }

    // The largest frame that BookKeeper's pipeline takes when nettyMaxFrameSizeBytes is 1000.
    static void frameLimit() {
        int largest = 0;
        for (int size = 900; size < 1100; size++) {
            EmbeddedChannel channel =
                new EmbeddedChannel(new LengthFieldBasedFrameDecoder(1000, 0, 4, 0, 4));
            try {
                channel.writeInbound(Unpooled.buffer().writeInt(size).writeZero(size));
                largest = channel.readInbound() == null ? largest : size;
            } catch (io.netty.handler.codec.TooLongFrameException tooLong) {
                break;
            }
        }
        print("frame.largest_of_1000", Integer.toString(largest));
    }
}
