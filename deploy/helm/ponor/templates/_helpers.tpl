{{/* Names, labels, and the parts that all pods have in common. */}}

{{- define "ponor.fullname" -}}
{{- if .Values.fullnameOverride }}{{ .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- else }}
{{- $name := default .Chart.Name .Values.nameOverride }}
{{- if contains $name .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}{{ printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}
{{- end }}

{{- define "ponor.labels" -}}
app.kubernetes.io/name: ponor
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .role }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{- define "ponor.selector" -}}
app.kubernetes.io/name: ponor
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .role }}
{{- end }}

{{- define "ponor.image" -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end }}

{{- define "ponor.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}{{ default (include "ponor.fullname" .) .Values.serviceAccount.name }}
{{- else }}{{ default "default" .Values.serviceAccount.name }}{{ end }}
{{- end }}

{{/* The permanent DNS name of a pod of a StatefulSet; the entrypoint or the caller replaces POD. */}}
{{- define "ponor.podHost" -}}
{{ .pod }}.{{ include "ponor.fullname" .root }}-{{ .role }}.{{ .root.Release.Namespace }}.svc.{{ .root.Values.clusterDomain }}
{{- end }}

{{- define "ponor.controllerHosts" -}}
{{- $hosts := list }}
{{- range $ordinal := until (int .Values.controllers.replicas) }}
{{- $pod := printf "%s-controller-%d" (include "ponor.fullname" $) $ordinal }}
{{- $hosts = append $hosts (include "ponor.podHost" (dict "root" $ "role" "controller" "pod" $pod)) }}
{{- end }}
{{- join "," $hosts }}
{{- end }}

{{/* Bootstrap address for clients within Kubernetes. */}}
{{- define "ponor.bootstrap" -}}
{{ include "ponor.fullname" . }}.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}:{{ .Values.brokers.kafka.port }}
{{- end }}

{{/* Environment of every role; see deploy/image/ponor_entry.py. */}}
{{- define "ponor.env" -}}
- name: PONOR_POD
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: PONOR_CLUSTER_ORDINAL
  value: {{ .root.Values.clusterOrdinal | quote }}
{{- with .root.Values.clusterId }}
- name: PONOR_CLUSTER_ID
  value: {{ . | quote }}
{{- end }}
- name: PONOR_CONTROLLERS
  value: {{ include "ponor.controllerHosts" .root | quote }}
- name: PONOR_CONTROLLER_PORT
  value: "9090"
- name: PONOR_PEER_PORT
  value: "9091"
- name: PONOR_METRICS_PORT
  value: {{ .root.Values.metrics.port | quote }}
- name: PONOR_SETTINGS
  value: {{ merge (deepCopy .values.settings) (default dict .ownSettings) | toJson | quote }}
{{- if ne .role "controller" }}
- name: PONOR_OBJECT_STORE
  value: {{ required "objectStore.url is missing: s3://BUCKET/PREFIX?endpoint=URL" .root.Values.objectStore.url | quote }}
{{- if .root.Values.objectStore.shareStore }}
- name: PONOR_SHARE_STORE
  value: "true"
{{- end }}
{{- end }}
{{- with .root.Values.otlp.endpoint }}
- name: OTEL_EXPORTER_OTLP_ENDPOINT
  value: {{ . | quote }}
- name: OTEL_RESOURCE_ATTRIBUTES
  value: service.instance.id=$(PONOR_POD)
{{- end }}
{{- with .root.Values.otlp.traceRatio }}
- name: OTEL_TRACES_SAMPLER
  value: parentbased_traceidratio
- name: OTEL_TRACES_SAMPLER_ARG
  value: {{ . | quote }}
{{- end }}
{{- with .values.env }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Credentials of the object store. */}}
{{- define "ponor.envFrom" -}}
{{- with .Values.objectStore.existingSecret }}
envFrom:
  - secretRef: {name: {{ . | quote }}}
{{- end }}
{{- end }}

{{- define "ponor.podMetadata" -}}
labels:
  {{- include "ponor.labels" . | nindent 2 }}
  {{- with .ownLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- $annotations := deepCopy .values.podAnnotations }}
{{- if .root.Values.metrics.annotations }}
{{- $_ := set $annotations "prometheus.io/scrape" "true" }}
{{- $_ := set $annotations "prometheus.io/port" (.root.Values.metrics.port | toString) }}
{{- end }}
{{- with $annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "ponor.podSpec" -}}
serviceAccountName: {{ include "ponor.serviceAccount" .root }}
automountServiceAccountToken: false
# With service links, Kubernetes sets PONOR_CONTROLLER_PORT=tcp://... if a service is named ponor-controller.
enableServiceLinks: false
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . | quote }}
  {{- end }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- with .values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if .root.Values.topologySpread.enabled }}
topologySpreadConstraints:
  {{- range $key := .root.Values.topologySpread.keys }}
  - maxSkew: 1
    topologyKey: {{ $key | quote }}
    whenUnsatisfiable: {{ $.root.Values.topologySpread.whenUnsatisfiable }}
    labelSelector:
      matchLabels:
        {{- include "ponor.selector" $ | nindent 8 }}
  {{- end }}
{{- end }}
{{- end }}

{{/* Refuse settings with which external clients could not reach every broker. */}}
{{- define "ponor.checkExternal" -}}
{{- $kafka := .Values.brokers.kafka }}
{{- $brokers := int .Values.brokers.replicas }}
{{- if ne .Values.autoscaling.kind "none" }}{{- $brokers = int .Values.autoscaling.maxReplicas }}{{ end }}
{{- $last := int (add $kafka.port (mul $kafka.portStep (sub (max $brokers (int $kafka.externalReplicas)) 1))) }}
{{- if gt (int $kafka.portStep) 0 }}
{{- if gt $last 65535 }}
{{- fail (printf "the last broker would listen on port %d: lower brokers.kafka.port, brokers.kafka.portStep or brokers.kafka.externalReplicas" $last) }}
{{- end }}
{{- if and (ge (int .Values.metrics.port) (int $kafka.port)) (le (int .Values.metrics.port) $last) }}
{{- fail (printf "brokers listen on ports %d to %d, and metrics.port=%d is among them: choose another metrics.port" (int $kafka.port) $last (int .Values.metrics.port)) }}
{{- end }}
{{- end }}
{{- if ne $kafka.external "none" }}
{{- if not $kafka.advertisedHost }}
{{- fail "brokers.kafka.external needs brokers.kafka.advertisedHost: the host name that external clients use for broker {ordinal}" }}
{{- end }}
{{- if lt (int $kafka.externalReplicas) $brokers }}
{{- fail (printf "there may be %d brokers, but there are only %d services for external clients: set brokers.kafka.externalReplicas=%d" $brokers (int $kafka.externalReplicas) $brokers) }}
{{- end }}
{{- end }}
{{- if eq $kafka.external "NodePort" }}
{{- $first := int $kafka.nodePorts.first }}
{{- if or (lt (int $kafka.portStep) 1) (lt (int $kafka.port) $first) (gt $last (int $kafka.nodePorts.last)) }}
{{- fail (printf "brokers.kafka.external=NodePort needs a node port for every broker, from %d to %d (brokers.kafka.nodePorts), and a broker listens on the port that it advertises: set brokers.kafka.port=31000 and brokers.kafka.portStep=1, with brokers.kafka.externalReplicas=%d free ports from there on" $first (int $kafka.nodePorts.last) (int $kafka.externalReplicas)) }}
{{- end }}
{{- end }}
{{- if and (eq $kafka.external "LoadBalancer") (not (regexMatch "[{](ordinal|pod)[}]" $kafka.advertisedHost)) }}
{{- fail (printf "brokers.kafka.external=LoadBalancer gives every broker an address of its own, but brokers.kafka.advertisedHost=%s is the same name for all brokers: write {ordinal} or {pod} where the names differ, such as broker-{ordinal}.kafka.example.com" $kafka.advertisedHost) }}
{{- end }}
{{- end }}

{{- define "ponor.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{- define "ponor.mounts" -}}
volumeMounts:
  - {name: data, mountPath: /var/lib/ponor}
  - {name: run, mountPath: /run/ponor}
  - {name: tmp, mountPath: /tmp}
{{- end }}

{{/* A separate thread of the service answers probes. /readyz: the node is registered, current and not fenced. /livez: its event loop runs; if not, a restart helps. */}}
{{- define "ponor.probes" -}}
startupProbe:
  httpGet: {path: /livez, port: metrics}
  periodSeconds: 2
  timeoutSeconds: 2
  failureThreshold: 60
readinessProbe:
  httpGet: {path: /readyz, port: metrics}
  periodSeconds: 2
  timeoutSeconds: 2
  failureThreshold: 1
livenessProbe:
  httpGet: {path: /livez, port: metrics}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 4
{{- end }}
