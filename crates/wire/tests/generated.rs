//! The generated code in `src/proto` is what the `.proto` file says.

use std::path::Path;

#[test]
fn the_generated_code_is_what_the_proto_file_says() {
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    let kept = crate_dir.join("src/proto");
    let made = std::env::temp_dir().join(format!("hapax-generated-{}", std::process::id()));
    std::fs::create_dir_all(&made).unwrap();
    let descriptors = protox::compile(["hapax/v1/hapax.proto"], [crate_dir.join("proto")]).unwrap();
    tonic_prost_build::configure()
        .out_dir(&made)
        .bytes(".")
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
