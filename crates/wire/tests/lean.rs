//! The messages of the streams, read and written by hand, against the generated types.

use bytes::Bytes;
use hapax_wire::lean;
use hapax_wire::proto::{self, settle::Verb};
use prost::Message as _;

/// Numbers at the bounds of their lengths.
const NUMBERS: [u64; 7] = [0, 1, 127, 128, 16_383, 1_700_000_000_000, u64::MAX];

fn message(number: u64, full: bool) -> proto::Message {
    let plain = proto::Message {
        r#ref: number,
        key: Some(format!("order-{number}")),
        body: vec![7; (number % 300) as usize].into(),
        ..Default::default()
    };
    if !full {
        return plain;
    }
    proto::Message {
        content_type: "text/plain".to_owned(),
        group: Some("g".to_owned()),
        headers: [("traceparent".to_owned(), "00-1".to_owned())].into(),
        delay_ms: Some(0),
        ttl_ms: Some(number),
        fingerprint: Some(String::new()),
        issued_at_ms: Some(number),
        ..plain
    }
}

#[test]
fn a_frame_of_messages_is_read_and_written_as_the_generated_types_do() {
    let messages: Vec<_> = NUMBERS
        .into_iter()
        .flat_map(|number| [message(number, false), message(number, true)])
        .chain([proto::Message {
            key: Some(String::new()),
            group: Some(String::new()),
            ..Default::default()
        }])
        .collect();
    let frame = proto::SendFrame { queue: "orders".to_owned(), messages };
    let encoded = frame.encode_to_vec();

    let mut written = Vec::new();
    lean::frame_head(&mut written, &frame.queue);
    frame.messages.iter().for_each(|one| lean::put_message(&mut written, &one.into()));
    assert_eq!(written, encoded);

    let mut read = lean::Frame::read(&encoded).unwrap();
    assert_eq!(read.queue, "orders");
    for one in &frame.messages {
        assert_eq!(read.next().unwrap().unwrap(), one.into());
    }
    assert_eq!(read.next(), Ok(None));
}

#[test]
fn answers_are_read_and_written_as_the_generated_types_do() {
    for number in NUMBERS {
        let answer = proto::Answer {
            r#ref: number,
            kind: proto::AnswerKind::Accepted.into(),
            id: Bytes::from_static(&[5; 16]),
            state: proto::State::Ready.into(),
            accepted_at_ms: number,
            ..Default::default()
        };
        let full = proto::Answer {
            kind: proto::AnswerKind::Error.into(),
            problem: Some(proto::Problem { code: "conflict".to_owned(), ..Default::default() }),
            ..answer.clone()
        };
        let reply = proto::SendReply { answers: vec![answer.clone(), full.clone()] };
        let mut written = Vec::new();
        lean::put_answer(&mut written, number, 1, &[5; 16], 1, number);
        lean::put_nested(&mut written, lean::ANSWER, &full);
        assert_eq!(written, reply.encode_to_vec());

        let mut answers = lean::Answers::new(&written);
        let first = answers.next().unwrap().unwrap();
        assert_eq!((first.reference, first.kind, first.state), (number, 1, 1));
        assert_eq!((first.id, first.accepted_at_ms), (&[5; 16][..], number));
        assert_eq!(first.whole().unwrap(), answer);
        let second = answers.next().unwrap().unwrap();
        assert_eq!(second.whole().unwrap(), full);
        assert_eq!(answers.next(), Ok(None));
    }
}

#[test]
fn settles_are_read_and_written_as_the_generated_types_do() {
    let lease = Bytes::from_static(b"a lease");
    let blob = |body: &'static str, content_type: &str| {
        Some(proto::Blob { body: body.into(), content_type: content_type.to_owned() })
    };
    let emits = vec![proto::Emit { name: "n".to_owned(), ..Default::default() }];
    let fail = proto::Fail { error: "no".to_owned(), delay_ms: Some(5), dead: true };
    let verbs = [
        Verb::Done(proto::Done { result: None, emits: Vec::new() }),
        Verb::Done(proto::Done { result: blob("", ""), emits: Vec::new() }),
        Verb::Done(proto::Done { result: blob("ok", "text/plain"), emits: Vec::new() }),
        Verb::Done(proto::Done { result: blob("ok", ""), emits }),
        Verb::Fail(fail),
        Verb::Release(proto::Release {}),
        Verb::Extend(proto::Extend { lease_ms: Some(7) }),
        Verb::Begin(proto::Begin {}),
        Verb::Save(proto::Save { name: "n".to_owned(), body: "data".into() }),
        Verb::Park(proto::Park { error: "killed".to_owned(), delay_ms: Some(7), dead: true }),
    ];
    for (verb, number) in verbs.into_iter().zip(NUMBERS.into_iter().cycle()) {
        let settle =
            proto::Settle { r#ref: number, lease: lease.clone(), verb: Some(verb.clone()) };
        let open = proto::WorkOpen { queue: "orders".to_owned(), ..Default::default() };
        let frame = proto::WorkFrame {
            open: Some(open.clone()),
            credit: 9,
            settles: vec![settle],
            drain: true,
        };
        let encoded = frame.encode_to_vec();
        let mut read = lean::WorkFrame::read(&encoded).unwrap();
        assert_eq!((&read.open, read.credit, read.drain), (&Some(open), 9, true));
        let settle = read.next().unwrap().unwrap();
        assert_eq!((settle.reference, settle.lease), (number, &lease[..]));
        assert_eq!(settle.verb().unwrap(), Some(verb.clone()));
        let plain = match &verb {
            Verb::Done(done) if done.emits.is_empty() => {
                Some(done.result.as_ref().map(|blob| (&blob.body[..], blob.content_type.as_str())))
            }
            _ => None,
        };
        assert_eq!(settle.plain_done().unwrap(), plain);
        assert_eq!(read.next(), Ok(None));
        if let Some(result) = plain {
            let mut written = Vec::new();
            lean::put_done(&mut written, number, &lease, result);
            let only = proto::WorkFrame { settles: frame.settles.clone(), ..Default::default() };
            assert_eq!(written, only.encode_to_vec());
        }
    }
}

#[test]
fn deliveries_are_read_and_written_as_the_generated_types_do() {
    for number in NUMBERS {
        let delivery = proto::Delivery {
            lease: "lease".into(),
            fence: number,
            key: "k".repeat((number % 200) as usize),
            id: Bytes::from_static(&[3; 16]),
            attempt: number as u32,
            generation: number as u32,
            group: if number % 2 == 0 { "g".to_owned() } else { String::new() },
            body: vec![9; (number % 1_000) as usize].into(),
            content_type: "text/plain".to_owned(),
            headers: [("name".to_owned(), "value".to_owned())].into(),
            accepted_at_ms: number,
            deadline_ms: number,
            recovery_points: [("point".to_owned(), "data".into())].into(),
            ..Default::default()
        };
        let settled = proto::SettleAnswer {
            r#ref: number,
            kind: proto::SettleKind::Ok.into(),
            state: proto::State::Done.into(),
            deadline_ms: Some(number),
            ..Default::default()
        };
        let reply = proto::WorkReply {
            deliveries: vec![delivery.clone()],
            settled: vec![settled.clone()],
            lost: vec![number, 5],
            closing: true,
            lease_ms: Some(number),
            tenant: "acme".to_owned(),
            keys_per_group: true,
        };
        let encoded = reply.encode_to_vec();
        let mut read = lean::WorkReply::read(&encoded).unwrap();
        assert_eq!((&read.lost[..], read.closing), (&[number, 5][..], true));
        assert_eq!(read.lease_ms, Some(number));
        assert_eq!((read.tenant, read.keys_per_group), ("acme", true));
        let lean = read.next_delivery().unwrap().unwrap();
        assert_eq!((lean.key, lean.body), (&*delivery.key, &delivery.body[..]));
        assert_eq!((lean.fence, lean.attempt), (number, delivery.attempt));
        assert_eq!(lean.recovery_points, [("point", &b"data"[..])]);
        assert_eq!(read.next_delivery(), Ok(None));
        let answer = read.next_settled().unwrap().unwrap();
        assert_eq!(answer.whole().unwrap(), settled);
        assert_eq!((answer.reference, answer.deadline_ms), (number, Some(number)));

        let mut written = Vec::new();
        lean::put_delivery(&mut written, &lean);
        lean::put_settled(&mut written, number, 1, 6, Some(number));
        let expected = proto::WorkReply {
            deliveries: vec![delivery],
            settled: vec![settled],
            ..Default::default()
        };
        assert_eq!(written, expected.encode_to_vec());
    }
}

#[test]
fn the_last_of_two_fields_counts_and_unknown_ones_are_stepped_over() {
    let mut frame =
        proto::SendFrame { queue: "first".to_owned(), messages: vec![message(1, true)] }
            .encode_to_vec();
    // Fields 15 as a number, 16 as bytes, 14 as 8 bytes, 13 as 4 bytes.
    frame.extend(b"\x78\x05\x82\x01\x02hi\x71\x00\x00\x00\x00\x00\x00\x00\x00\x6d\x00\x00\x00\x00");
    proto::SendFrame { queue: "last".to_owned(), messages: vec![message(2, false)] }
        .encode(&mut frame)
        .unwrap();
    assert!(proto::SendFrame::decode(&frame[..]).is_ok());
    let mut read = lean::Frame::read(&frame).unwrap();
    assert_eq!(read.queue, "last");
    assert_eq!(read.next().unwrap().unwrap().reference, 1);
    assert_eq!(read.next().unwrap().unwrap().reference, 2);
}

/// Reads everything that can be read of some bytes.
fn read_all(bytes: &[u8]) -> Result<(), lean::Malformed> {
    let mut frame = lean::Frame::read(bytes)?;
    while frame.next()?.is_some() {}
    Ok(())
}

#[test]
fn a_frame_cut_anywhere_or_changed_anywhere_is_no_panic() {
    let messages = vec![message(300, true), message(5, false)];
    let frame = proto::SendFrame { queue: "orders".to_owned(), messages }.encode_to_vec();
    for end in 0..frame.len() {
        let cut = &frame[..end];
        assert_eq!(read_all(cut).is_ok(), proto::SendFrame::decode(cut).is_ok(), "cut at {end}");
    }
    for place in 0..frame.len() {
        for bit in 0..8 {
            let mut changed = frame.clone();
            changed[place] ^= 1 << bit;
            // What the generated types take is taken; groups, which they skip, are refused.
            if read_all(&changed).is_ok() {
                assert!(proto::SendFrame::decode(&changed[..]).is_ok(), "{place}.{bit}");
            }
            let _ = lean::WorkFrame::read(&changed)
                .map(|mut frame| while let Ok(Some(_)) = frame.next() {});
            let _ = lean::WorkReply::read(&changed)
                .map(|mut reply| while let Ok(Some(_)) = reply.next_delivery() {});
            let _ = lean::ClaimsFrame::read(&changed)
                .map(|mut frame| while let Ok(Some(_)) = frame.next_claim() {});
        }
    }
}

#[test]
fn headers_beyond_what_any_message_has_are_not_kept() {
    let headers = (0..10_000).map(|number| (number.to_string(), String::new())).collect();
    let bytes = proto::Message { headers, ..Default::default() }.encode_to_vec();
    let read = lean::Message::read(&bytes).unwrap();
    assert!((65..300).contains(&read.headers.len()), "{}", read.headers.len());
}

#[test]
fn a_frame_of_claims_is_read_and_written_as_the_generated_types_do() {
    let plain = |number: u64| proto::ClaimRequest {
        key: format!("order-{number}"),
        fingerprint: Some("f".repeat((number % 300) as usize)),
        claim_id: "c".to_owned(),
        headers: [("request".to_owned(), "POST /charges".to_owned())].into(),
        ..Default::default()
    };
    let full = |number: u64| proto::ClaimRequest {
        queue: "orders".to_owned(),
        body: vec![7; (number % 300) as usize].into(),
        content_type: "text/plain".to_owned(),
        lease_ms: Some(number),
        worker: "w".to_owned(),
        issued_at_ms: Some(0),
        ..plain(number)
    };
    let claims = NUMBERS.into_iter().flat_map(|number| [plain(number), full(number)]);
    let claims: Vec<_> = claims.chain([proto::ClaimRequest::default()]).collect();
    let settle = |number| proto::Settle {
        r#ref: number,
        lease: vec![1; 40].into(),
        verb: Some(Verb::Release(proto::Release {})),
    };
    let settles = NUMBERS.map(settle).to_vec();

    let mut written = Vec::new();
    lean::frame_head(&mut written, "orders");
    for (claim, number) in claims.iter().zip(0..) {
        // Each but its reference and its wait is encoded before.
        lean::put_claim(&mut written, number, number / 2, &claim.encode_to_vec());
    }
    settles.iter().for_each(|settle| lean::put_nested(&mut written, lean::SETTLE, settle));
    let leave = proto::ClaimsFrame { leave: NUMBERS.to_vec(), ..Default::default() };
    leave.encode(&mut written).unwrap();

    let numbered = claims.into_iter().zip(0..).map(|(claim, number)| proto::ClaimRequest {
        r#ref: number,
        wait_ms: number / 2,
        ..claim
    });
    let (queue, leave) = ("orders".to_owned(), NUMBERS.to_vec());
    let frame = proto::ClaimsFrame { queue, claims: numbered.collect(), settles, leave };
    assert_eq!(proto::ClaimsFrame::decode(&written[..]).unwrap(), frame);

    let mut read = lean::ClaimsFrame::read(&written).unwrap();
    assert_eq!((read.queue, &read.leave, read.is_empty()), ("orders", &frame.leave, false));
    for settle in &frame.settles {
        let settle_read = read.next_settle().unwrap().unwrap();
        assert_eq!((settle_read.reference, settle_read.lease), (settle.r#ref, &settle.lease[..]));
        assert_eq!(settle_read.verb().unwrap(), settle.verb);
    }
    for claim in &frame.claims {
        assert_eq!(read.next_claim().unwrap().unwrap(), claim.into());
    }
    assert_eq!((read.next_claim(), read.next_settle()), (Ok(None), Ok(None)));
}
