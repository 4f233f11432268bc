//! The HTTP/JSON door.
//!
//! Every route is in one table, from which the router and the OpenAPI document are made, and which
//! says what each route takes ([`takes`]). A handler reads a request ([`input`], [`head`],
//! [`body`]), calls the service, and writes what it said ([`shape`], [`output`]); refusals are
//! problem documents ([`failure`]). What concerns every request alike is in [`dispatch`].

mod body;
mod claims;
mod dispatch;
mod failure;
mod head;
mod input;
mod key;
mod keys;
mod messages;
mod openapi;
mod output;
mod pages;
mod queues;
mod redrives;
mod takes;
mod unread;
mod work;

use axum::Router;
use axum::routing::{delete, get, post, put};
use hapax_wire as wire;
use utoipa::OpenApi;

use crate::service::Service;
use openapi::Every;
use takes::Takes;

/// Everything that is served under HTTP.
pub fn router(service: Service) -> Router {
    routes()
        .fallback(pages::lost)
        .method_not_allowed_fallback(pages::misused)
        .layer(axum::middleware::from_fn_with_state(service.clone(), dispatch::dispatch))
        .with_state(service)
}

macro_rules! routes {
    ($($method:ident $path:literal => $module:ident::$handler:ident, $takes:ident;)+) => {
        /// Every route: method and path.
        pub const ROUTES: &[(&str, &str)] = &[$((stringify!($method), $path),)+];

        /// Every route, and what it takes.
        const TABLE: &[(&str, &str, Takes)] =
            &[$((stringify!($method), $path, Takes::$takes),)+];

        fn routes() -> Router<Service> {
            Router::new()$(.route($path, $method($module::$handler)))+
        }

        #[derive(OpenApi)]
        #[openapi(
            info(
                title = "Hapax",
                description = "A durable message queue in which every message carries an \
                               idempotency key.",
            ),
            paths($($module::$handler),+),
            components(schemas(wire::Document)),
            modifiers(&Every),
            tags(
                (name = "queues", description = "Named sets of rules for messages"),
                (name = "sending", description = "Under one key an operation is accepted once"),
                (name = "working", description = "Messages under leases"),
                (name = "claims", description = "Keys for callers who do the work themselves"),
                (name = "keys", description = "Looking at keys, and what operators do with them"),
                (name = "broker", description = "The broker about itself"),
            ),
        )]
        struct Document;
    };
}

routes! {
    get "/" => pages::home, NOTHING;
    get "/livez" => pages::livez, NOTHING;
    get "/readyz" => pages::readyz, NOTHING;
    get "/metrics" => pages::metrics, NOTHING;
    get "/errors" => pages::errors, NOTHING;
    get "/errors/{code}" => pages::error, NOTHING;
    get "/v1/openapi.json" => pages::openapi, NOTHING;
    get "/v1/limits" => pages::limits, NOTHING;
    get "/v1/queues" => queues::list, NOTHING;
    put "/v1/queues/{queue}" => queues::put, CONFIG;
    get "/v1/queues/{queue}" => queues::get, NOTHING;
    delete "/v1/queues/{queue}" => queues::delete, IF_MATCH;
    post "/v1/queues/{queue}/pause" => queues::pause, NOTHING;
    post "/v1/queues/{queue}/resume" => queues::resume, NOTHING;
    post "/v1/queues/{queue}/purge" => queues::purge, BODY;
    post "/v1/queues/{queue}/messages" => messages::send, MESSAGE;
    get "/v1/queues/{queue}/messages" => messages::browse, PAGE;
    post "/v1/queues/{queue}/batch" => messages::batch, BODY;
    post "/v1/queues/{queue}/receive" => work::receive, BODY;
    post "/v1/queues/{queue}/settle" => work::settle, BODY;
    post "/v1/queues/{queue}/claims" => claims::post, CLAIM;
    post "/v1/queues/{queue}/redrive" => redrives::post, BODY;
    get "/v1/queues/{queue}/redrive/{id}" => redrives::get, NOTHING;
    delete "/v1/queues/{queue}/redrive/{id}" => redrives::cancel, NOTHING;
    get "/v1/queues/{queue}/keys/{key}" => keys::get, LOOK;
    post "/v1/queues/{queue}/keys/{key}/forget" => keys::forget, KEY;
    post "/v1/queues/{queue}/keys/{key}/replay" => keys::replay, REPLAY;
    post "/v1/queues/{queue}/keys/{key}/redrive" => keys::redrive, KEY;
    post "/v1/queues/{queue}/keys/{key}/discard" => keys::discard, KEY;
    post "/v1/queues/{queue}/keys/{key}/resolve" => keys::resolve, RESOLVE;
}
