//! The `.proto` file is the contract: the generated code in `src/proto` is what it says, and so are
//! the shapes that are written by hand.
#![expect(clippy::unwrap_used, reason = "a test stops at surprises")]

use std::path::{Path, PathBuf};

use hapax_wire::proto;
use prost::Message;
use protox::prost_reflect::{
    DescriptorPool, DynamicMessage, FieldDescriptor, Kind, MapKey, MessageDescriptor, Value,
};

/// Calls a macro with every message of the `.proto` that is written by hand.
macro_rules! for_shapes {
    ($with:ident) => {
        $with! {
            Answer Begin Blob BrowseReply ClaimReply Delivery Done Emit Event Extend Fail Key
            ListQueuesReply Message Outcome Park Problem PurgeRequest Queue QueueStats ReceiveReply
            ReceiveRequest RedriveFilter RedriveProgress Release Save Settle SettleAnswer
            SettleReply
        }
    };
}

macro_rules! names {
    ($($name:ident)+) => { [$(stringify!($name)),+] };
}

/// Enums that are written by hand.
const ENUMS: [&str; 3] = ["AnswerKind", "SettleKind", "State"];

/// The name of our variant of a number.
type Spelled = fn(i32) -> Option<String>;

fn proto_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("proto")
}

#[test]
fn the_generated_code_is_what_the_proto_file_says() {
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    let kept = crate_dir.join("src/proto");
    let made = std::env::temp_dir().join(format!("hapax-generated-{}", std::process::id()));
    std::fs::create_dir_all(&made).unwrap();
    let descriptors = protox::compile(["hapax/v1/hapax.proto"], [proto_dir()]).unwrap();
    let mut generator =
        tonic_prost_build::configure().out_dir(&made).bytes(".").codec_path("crate::lean::Bounded");
    for name in for_shapes!(names).into_iter().chain(ENUMS) {
        generator =
            generator.extern_path(format!(".hapax.v1.{name}"), format!("crate::proto::{name}"));
    }
    generator
        .file_descriptor_set_path(made.join("hapax.v1.bin"))
        .compile_fds(descriptors.clone())
        .unwrap();
    let files = [
        ("hapax.v1.rs", std::fs::read(made.join("hapax.v1.rs")).unwrap()),
        ("hapax.v1.bin", prost::Message::encode_to_vec(&descriptors)),
    ];
    std::fs::remove_dir_all(&made).unwrap();
    for (name, bytes) in files {
        if std::env::var_os("HAPAX_BLESS").is_some() {
            std::fs::write(kept.join(name), &bytes).unwrap();
        }
        let same = std::fs::read(kept.join(name)).unwrap() == bytes;
        assert!(same, "{name} is not what the .proto says: run this test with HAPAX_BLESS=1");
    }
}

#[test]
fn the_shapes_are_what_the_proto_file_says() {
    let descriptors = protox::compile(["hapax/v1/hapax.proto"], [proto_dir()]).unwrap();
    let pool = DescriptorPool::from_file_descriptor_set(descriptors).unwrap();
    macro_rules! check {
        ($($name:ident)+) => {$(
            let message = pool.get_message_by_name(concat!("hapax.v1.", stringify!($name)));
            reads_back::<proto::$name>(&message.unwrap());
        )+};
    }
    for_shapes!(check);
    let enums: [(&str, Spelled); 3] = [
        ("AnswerKind", |it| proto::AnswerKind::try_from(it).ok().map(|it| format!("{it:?}"))),
        ("SettleKind", |it| proto::SettleKind::try_from(it).ok().map(|it| format!("{it:?}"))),
        ("State", |it| proto::State::try_from(it).ok().map(|it| format!("{it:?}"))),
    ];
    for (name, ours) in enums {
        let values = pool.get_enum_by_name(&format!("hapax.v1.{name}")).unwrap();
        for value in values.values() {
            let spelled = ours(value.number()).unwrap_or_default().to_lowercase();
            let plain = value.name().replace('_', "").to_lowercase();
            assert!(!spelled.is_empty() && plain.ends_with(&spelled), "{value:?}: {spelled}");
        }
        assert_eq!(ours(values.values().len() as i32), None, "{name}");
    }
}

/// Every message that the descriptor can tell apart is read by the shape and written again.
fn reads_back<T: Message + Default + std::fmt::Debug>(descriptor: &MessageDescriptor) {
    for sample in samples(descriptor) {
        let bytes = sample.encode_to_vec();
        let read = T::decode(&bytes[..]).unwrap_or_else(|error| panic!("{sample:?}: {error}"));
        let written = read.encode_to_vec();
        let again = DynamicMessage::decode(descriptor.clone(), &written[..]).unwrap();
        assert!(again == sample, "{} is another in the .proto: {read:?}", descriptor.name());
    }
}

/// Messages with every field set to what no other kind of field could hold; of a choice, each in
/// turn; and those whose presence counts, at their default.
fn samples(descriptor: &MessageDescriptor) -> Vec<DynamicMessage> {
    let mut whole = DynamicMessage::new(descriptor.clone());
    let mut present = DynamicMessage::new(descriptor.clone());
    let mut choices = Vec::new();
    for field in descriptor.fields() {
        let is_choice = field.containing_oneof().is_some_and(|oneof| !oneof.is_synthetic());
        for value in values(&field) {
            let mut one = whole.clone();
            one.set_field(&field, value.clone());
            match is_choice {
                true => choices.push(one),
                false => whole = one,
            }
        }
        let is_scalar = !matches!(field.kind(), Kind::Message(_));
        if field.supports_presence() && is_scalar && !is_choice {
            present.set_field(&field, Value::default_value_for_field(&field));
        }
    }
    choices.extend([whole, present]);
    choices
}

fn values(field: &FieldDescriptor) -> Vec<Value> {
    let scalar = |kind: Kind| match kind {
        Kind::Bool => vec![Value::Bool(true)],
        Kind::Uint32 => vec![Value::U32(u32::MAX)],
        Kind::Uint64 => vec![Value::U64(u64::MAX)],
        Kind::String => vec![Value::String("größe".to_owned())],
        Kind::Bytes => vec![Value::Bytes(b"\xff\xfe"[..].into())],
        Kind::Enum(it) => vec![Value::EnumNumber(it.values().last().unwrap().number())],
        Kind::Message(it) => samples(&it).into_iter().map(Value::Message).collect(),
        other => panic!("{other:?} is new: what would no other kind hold?"),
    };
    if field.is_map() {
        let Kind::Message(entry) = field.kind() else { panic!("{field:?}") };
        let value = scalar(entry.map_entry_value_field().kind()).remove(0);
        return vec![Value::Map([(MapKey::String("name".to_owned()), value)].into())];
    }
    match field.is_list() {
        true => vec![Value::List(scalar(field.kind()))],
        false => scalar(field.kind()),
    }
}
