"""Broker settings: authentication, authorization, TLS."""

from typing import Final

BROKER_SECURITY: Final = """\
authorizer.class.name: string =
  no effect: Class that authorizes requests; empty to allow everything.
connection.failed.authentication.delay.ms: int = 100; 0..
  no effect: Delay of the response to a failed authentication.
connections.max.reauth.ms: long = 0
  no effect: Time after which SASL clients must authenticate again; 0 for never.
delegation.token.expiry.check.interval.ms: long = 3600000; 1..
  no effect: How often delegation tokens are checked for expiry.
delegation.token.expiry.time.ms: long = 86400000; 1..
  no effect: How long a delegation token is valid before it must be renewed.
delegation.token.max.lifetime.ms: long = 604800000; 1..
  no effect: How long a delegation token can be renewed.
delegation.token.secret.key: password = null
  no effect: Secret that signs delegation tokens.
listener.security.protocol.map: string = SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT; per-broker
  no effect: Security protocol of each listener; here there is one listener in plain text.
principal.builder.class: class = org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder; per-broker
  no effect: Class that builds the principal of an authenticated connection.
sasl.client.callback.handler.class: class = null
  no effect: Callback class of the broker's own SASL clients.
sasl.enabled.mechanisms: list = GSSAPI; per-broker
  no effect: SASL mechanisms that clients may use.
sasl.jaas.config: password = null; per-broker
  no effect: JAAS login of a listener and mechanism.
sasl.kerberos.kinit.cmd: string = /usr/bin/kinit; per-broker
  no effect: Path of the kinit command.
sasl.kerberos.min.time.before.relogin: long = 60000; per-broker
  no effect: Shortest time between two refreshes of a Kerberos ticket.
sasl.kerberos.principal.to.local.rules: list = DEFAULT; per-broker
  no effect: Rules that map Kerberos principals to short names.
sasl.kerberos.service.name: string = null; per-broker
  no effect: Kerberos service name of the broker.
sasl.kerberos.ticket.renew.jitter: double = 0.05; per-broker
  no effect: Random part of the time to a ticket's renewal.
sasl.kerberos.ticket.renew.window.factor: double = 0.8; per-broker
  no effect: Share of a ticket's life after which it is renewed.
sasl.login.callback.handler.class: class = null
  no effect: Callback class of SASL logins.
sasl.login.class: class = null
  no effect: Class that performs SASL logins.
sasl.login.connect.timeout.ms: int = null
  no effect: How long a login waits for its connection to the identity provider.
sasl.login.read.timeout.ms: int = null
  no effect: How long a login waits for the identity provider's response.
sasl.login.refresh.buffer.seconds: short = 300; per-broker
  no effect: Minimum remaining validity in seconds at which a credential is refreshed.
sasl.login.refresh.min.period.seconds: short = 60; per-broker
  no effect: Minimum seconds between two refreshes of a credential.
sasl.login.refresh.window.factor: double = 0.8; per-broker
  no effect: Share of a credential's life after which it is refreshed.
sasl.login.refresh.window.jitter: double = 0.05; per-broker
  no effect: Random part of the time to a credential's refresh.
sasl.login.retry.backoff.max.ms: long = 10000
  no effect: Longest pause between attempts to log in.
sasl.login.retry.backoff.ms: long = 100
  no effect: First pause between attempts to log in.
sasl.mechanism.controller.protocol: string = GSSAPI
  no effect: SASL mechanism towards controllers.
sasl.mechanism.inter.broker.protocol: string = GSSAPI; per-broker
  no effect: SASL mechanism between brokers.
sasl.oauthbearer.assertion.algorithm: string = RS256; any case: ES256 | RS256
  no effect: Algorithm that signs a client's assertion.
sasl.oauthbearer.assertion.claim.aud: string = null
  no effect: Audience of a client's assertion.
sasl.oauthbearer.assertion.claim.exp.seconds: int = 300; 0..86400
  no effect: Seconds for which a client's assertion is valid.
sasl.oauthbearer.assertion.claim.iss: string = null
  no effect: Issuer of a client's assertion.
sasl.oauthbearer.assertion.claim.jti.include: boolean = false
  no effect: Whether a client's assertion contains a unique id.
sasl.oauthbearer.assertion.claim.nbf.seconds: int = 60; 0..3600
  no effect: Seconds by which the validity of a client's assertion starts earlier, to allow for clock skew.
sasl.oauthbearer.assertion.claim.sub: string = null
  no effect: Subject of a client's assertion.
sasl.oauthbearer.assertion.file: string = null
  no effect: File with a ready-made assertion.
sasl.oauthbearer.assertion.private.key.file: string = null
  no effect: File with the key that signs assertions.
sasl.oauthbearer.assertion.private.key.passphrase: password = null
  no effect: Passphrase of the key that signs assertions.
sasl.oauthbearer.assertion.template.file: string = null
  no effect: File with static claims of the assertion.
sasl.oauthbearer.client.credentials.client.id: string = null
  no effect: Client id for the client credentials grant.
sasl.oauthbearer.client.credentials.client.secret: password = null
  no effect: Client secret for the client credentials grant.
sasl.oauthbearer.clock.skew.seconds: int = 30
  no effect: Clock skew that the validation of tokens tolerates.
sasl.oauthbearer.expected.audience: list =
  no effect: Accepted audiences of a token.
sasl.oauthbearer.expected.issuer: string = null
  no effect: Required issuer of a token.
sasl.oauthbearer.jwks.endpoint.refresh.ms: long = 3600000
  no effect: How often the provider's keys are fetched.
sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms: long = 10000
  no effect: Longest pause between attempts to fetch the provider's keys.
sasl.oauthbearer.jwks.endpoint.retry.backoff.ms: long = 100
  no effect: First pause between attempts to fetch the provider's keys.
sasl.oauthbearer.jwks.endpoint.url: string = null
  no effect: URL of the provider's keys.
sasl.oauthbearer.jwt.retriever.class: class = org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever
  no effect: Class that retrieves tokens.
sasl.oauthbearer.jwt.validator.class: class = org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator
  no effect: Class that validates tokens.
sasl.oauthbearer.scope.claim.name: string = scope
  no effect: Claim that holds the scope.
sasl.oauthbearer.scope: string = null
  no effect: Scope that a client requests.
sasl.oauthbearer.sub.claim.name: string = sub
  no effect: Claim that holds the subject.
sasl.oauthbearer.token.endpoint.url: string = null
  no effect: URL of the token endpoint.
sasl.server.callback.handler.class: class = null
  no effect: Callback class of a listener's SASL mechanism.
sasl.server.max.receive.size: int = 524288
  no effect: Largest message before authentication completes.
security.inter.broker.protocol: string = PLAINTEXT; PLAINTEXT | SSL | SASL_PLAINTEXT | SASL_SSL
  no effect: Security protocol between brokers.
security.providers: string = null
  no effect: Classes that provide security algorithms.
ssl.allow.dn.changes: boolean = false
  no effect: Whether a new keystore may have a different subject.
ssl.allow.san.changes: boolean = false
  no effect: Whether a new keystore may have different host names.
ssl.cipher.suites: list =; per-broker
  no effect: Cipher suites that TLS may use; empty for the library's choice.
ssl.client.auth: string = none; required | requested | none; per-broker
  no effect: Whether clients must present a certificate.
ssl.enabled.protocols: list = TLSv1.2,TLSv1.3; per-broker
  no effect: Enabled TLS versions.
ssl.endpoint.identification.algorithm: string = https; per-broker
  no effect: How the name in a server's certificate is checked.
ssl.engine.factory.class: class = null; per-broker
  no effect: Class that creates TLS engines.
ssl.key.password: password = null; per-broker
  no effect: Password of the private key.
ssl.keymanager.algorithm: string = SunX509; per-broker
  no effect: Algorithm of the key manager.
ssl.keystore.certificate.chain: password = null; per-broker
  no effect: Certificates in PEM.
ssl.keystore.key: password = null; per-broker
  no effect: Private key in PEM.
ssl.keystore.location: string = null; per-broker
  no effect: File of the keystore.
ssl.keystore.password: password = null; per-broker
  no effect: Password of the keystore.
ssl.keystore.type: string = JKS; per-broker
  no effect: Format of the keystore.
ssl.principal.mapping.rules: string = DEFAULT
  no effect: Rules that map certificate names to short names.
ssl.protocol: string = TLSv1.3; per-broker
  no effect: TLS version of TLS contexts.
ssl.provider: string = null; per-broker
  no effect: Security provider for TLS.
ssl.secure.random.implementation: string = null; per-broker
  no effect: Random generator for TLS.
ssl.trustmanager.algorithm: string = PKIX; per-broker
  no effect: Algorithm of the trust manager.
ssl.truststore.certificates: password = null; per-broker
  no effect: Trusted certificates in PEM.
ssl.truststore.location: string = null; per-broker
  no effect: File of the truststore.
ssl.truststore.password: password = null; per-broker
  no effect: Password of the truststore.
ssl.truststore.type: string = JKS; per-broker
  no effect: Format of the truststore.
"""
