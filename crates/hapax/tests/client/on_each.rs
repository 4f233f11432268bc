//! Tests on brokers of one and of several partitions, where they wait for futures.

/// Makes two tests of an asynchronous function of the number of partitions; what follows its name
/// is for `tokio::test`.
macro_rules! on_each {
    ($test:ident $(, $($how:tt)+)?) => {
        mod $test {
            #[tokio::test$(($($how)+))?]
            async fn on_one_partition() {
                super::$test(1).await;
            }

            #[tokio::test$(($($how)+))?]
            async fn on_four_partitions() {
                super::$test(4).await;
            }
        }
    };
}
