//! Tests on brokers of one and of several partitions, where they block.

/// Makes two tests of a function of the number of partitions.
macro_rules! on_one_and_on_four {
    ($name:ident) => {
        mod $name {
            #[test]
            fn on_one_partition() {
                super::$name(1);
            }

            #[test]
            fn on_four_partitions() {
                super::$name(4);
            }
        }
    };
}
